// An event store as a user would write it against the SDKs' interface, with faults that a test can order.
//
// It is also the store of the stock transports: a list for each stream and a look-up by id, one object for all
// sessions, as a data base would be.
import { open } from 'node:fs/promises';
import { sleep } from '../../node/kit/raw.mjs';
import { gate, mark } from './control.mjs';

/** What a real driver's exception would carry. No client may ever see it. */
export const SECRET = 'redis://user:hunter2@10.0.0.7:6379';

export const BAD_IDS = {
  newline: '12\ndata: {}\n\n',
  return: '12\rid: 13',
  blank: '1 2',
  empty: '',
  accent: 'é12',
  nul: '1\x002',
  long: 'x'.repeat(513),
  number: 12,
  none: undefined,
};

/** priming, terminal, request or notification. */
function kind(message) {
  if (message === undefined || Object.keys(message).length === 0) {
    return 'priming';
  }
  if (message.method === undefined) {
    return 'terminal';
  }
  return message.id === undefined ? 'notification' : 'request';
}

/** Keeps everything, or `cap` events of each stream, and misbehaves as planned. */
export class LabStore {
  names = new Set();
  replays = 0;
  overlaps = 0;
  #cap;
  #streams = new Map();
  #index = new Map();
  #busy = new Set();
  #count = 0;
  #calls = 0;
  #failed = 0;
  #plan;

  constructor({ cap = Infinity } = {}) {
    this.#cap = cap;
    this.plan();
  }

  /**
   * How the store behaves from now on: `latencyMs` of the calls in turn, the kind of event that fails (`times`
   * times), a bad id for one event of the kind `badOn`, a gate where events of the kind `gateOn` wait, and one where a
   * replay waits that has handed over all it found.
   */
  plan({
    latencyMs,
    fail,
    times = 1,
    badId,
    badOn = 'notification',
    gate: name,
    gateOn = 'notification',
    replayPrimings = false,
    replayFails = false,
    replayGate,
    forget = false,
  } = {}) {
    this.#plan = { latencyMs, fail, times, badId, badOn, name, gateOn, replayPrimings, replayFails, replayGate };
    if (forget) {
      this.#streams.clear();
      this.#index.clear();
    }
  }

  get rows() {
    return [...this.#streams.values()].reduce((sum, rows) => sum + rows.length, 0);
  }

  state() {
    const { rows, replays, overlaps } = this;
    return { rows, replays, overlaps, failed: this.#failed, names: [...this.names].sort() };
  }

  async storeEvent(streamId, message) {
    this.names.add(streamId);
    this.overlaps += this.#busy.has(streamId) ? 1 : 0;
    this.#busy.add(streamId);
    try {
      return await this.#store(streamId, message);
    } finally {
      this.#busy.delete(streamId);
    }
  }

  async #store(streamId, message) {
    const what = kind(message);
    const plan = this.#plan;
    if (plan.latencyMs !== undefined) {
      await sleep(plan.latencyMs[this.#calls++ % plan.latencyMs.length]);
    }
    if (plan.name !== undefined && plan.gateOn === what) {
      await gate(plan.name);
    }
    if (plan.fail === what && plan.times > 0) {
      plan.times -= 1;
      this.#failed += 1;
      mark('store failed');
      throw new Error(`cannot write to ${SECRET}`);
    }
    if (plan.badId !== undefined && plan.badOn === what) {
      const bad = BAD_IDS[plan.badId];
      plan.badId = undefined;
      return bad;
    }
    const id = String(++this.#count);
    if (!this.#streams.has(streamId)) {
      this.#streams.set(streamId, []);
    }
    const rows = this.#streams.get(streamId);
    rows.push({ id, message });
    this.#index.set(id, streamId);
    if (rows.length > this.#cap) {
      this.#index.delete(rows.shift().id);
    }
    return id;
  }

  async getStreamIdForEventId(eventId) {
    return this.#index.get(eventId);
  }

  async replayEventsAfter(lastEventId, { send }) {
    this.replays += 1;
    const { replayFails, replayPrimings, replayGate } = this.#plan;
    if (replayFails) {
      throw new Error(`cannot read from ${SECRET}`);
    }
    const streamId = this.#index.get(lastEventId);
    if (streamId === undefined) {
      throw new Error('no such event');
    }
    const rows = [...this.#streams.get(streamId)];
    for (const { id, message } of rows.slice(rows.findIndex((row) => row.id === lastEventId) + 1)) {
      if (replayPrimings || kind(message) !== 'priming') {
        await send(id, message);
      }
    }
    if (replayGate !== undefined) {
      await gate(replayGate);
    }
    return streamId;
  }
}

let write;

/** What every file of this process does on a disk that has become full: it takes a part of what is written. */
export async function fullDisk(isFull) {
  const file = await open(new URL('.', import.meta.url));
  const methods = Object.getPrototypeOf(file);
  await file.close();
  write ??= methods.write;
  const writePart = function (bytes, offset, length, position) {
    return write.call(this, bytes, offset, length >> 1, position);
  };
  methods.write = isFull ? writePart : write;
}
