// Gates and marks: a tool waits at a gate and a test opens it, a tool sets a mark and a test waits for it. So
// tests order events exactly, where a pause would only make the wanted order likely.
import { within } from '../../node/kit/raw.mjs';

const gates = new Map();
const board = new Map();
let gateCount = 0;

function slot(map, name, make) {
  if (!map.has(name)) {
    map.set(name, make());
  }
  return map.get(name);
}

function gateOf(name) {
  return slot(gates, name, () => ({ isOpen: false, waiting: new Set() }));
}

const markOf = (name) => slot(board, name, () => ({ count: 0, waiting: [] }));

/** A name that no other test uses: servers are shared, gates are not. */
export function newGate() {
  const name = `gate-${++gateCount}`;
  gateOf(name);
  return name;
}

export function open(...names) {
  for (const name of names) {
    gateOf(name).isOpen = true;
    gateOf(name).waiting.forEach((go) => go());
    gateOf(name).waiting.clear();
  }
}

/** Opens what a failed test left shut: its tools must not run on beside the next test. */
export function openAll() {
  open(...gates.keys());
}

export const isOpen = (name) => gateOf(name).isOpen;

/** Waits at a gate. Rejects when `signal` aborts first. */
export async function gate(name, signal) {
  mark(`at ${name}`);
  const { isOpen, waiting } = gateOf(name);
  signal?.throwIfAborted();
  if (isOpen) {
    return;
  }
  let stop;
  let go;
  // A tool that stops waiting leaves nothing behind at a gate that may never open.
  await new Promise((resolve, reject) => {
    [go, stop] = [resolve, () => reject(signal.reason)];
    waiting.add(go);
    signal?.addEventListener('abort', stop);
  }).finally(() => {
    waiting.delete(go);
    signal?.removeEventListener('abort', stop);
  });
}

/** How often each mark was set. */
export const marks = () => Object.fromEntries([...board].map(([name, { count }]) => [name, count]));

export function mark(name) {
  const found = markOf(name);
  found.count += 1;
  found.waiting = found.waiting.filter(({ count, resolve }) => found.count < count || resolve());
}

/** Resolves when the mark has been set so often. `ms` is how long that may take, where it is much. */
export function marked(name, count = 1, ms) {
  const found = markOf(name);
  if (found.count >= count) {
    return Promise.resolve();
  }
  const reached = new Promise((resolve) => found.waiting.push({ count, resolve }));
  return within(reached, ms, `the mark "${name}"`);
}

/** Resolves when a tool or a store waits at this gate. */
export const at = (name, count) => marked(`at ${name}`, count);

export function forgetMarks() {
  board.clear();
}
