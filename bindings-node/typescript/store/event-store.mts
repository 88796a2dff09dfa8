// Our event store where the SDKs take one, and which engine serves a transport.

import type { ConfigureOptions, EngineOptions } from '../engine-options.mjs';
import { invalid } from '../errors.mjs';
import { isDisabled } from '../platform.mjs';
import { MEMORY, Runtime, runtimeOf, runtimeOfUserStore, sharedRuntime, state, writeLog } from '../runtime.mjs';
import { HookedLog } from './hooked-log.mjs';
import { isStore, type Store } from './open.mjs';
import type { HostStore, ReplaySender } from './user-store.mjs';

// biome-ignore lint/suspicious/noExplicitAny: each SDK line has types of its own for messages.
type AnyMessage = any;

/** What an SDK's own transport asks of a store, for one session. `Message` is the SDK's. */
export interface ScopedEventStore<Message> {
  storeEvent(streamId: string, message: Message): Promise<string>;
  getStreamIdForEventId(eventId: string): Promise<string | undefined>;
  /** Rejects when the event was dropped, or never was. */
  replayEventsAfter(lastEventId: string, sender: ReplaySender<Message>): Promise<string>;
  /** Forgets everything of the session, when it has ended. */
  drop(): void;
}

/** What the SDKs' own transports ask of a store, for one scope of a log. */
class Hooks<Message> {
  #log: () => HookedLog;
  #scope: string;

  constructor(log: () => HookedLog, scope: string) {
    this.#log = log;
    this.#scope = scope;
  }

  async storeEvent(streamId: string, message: Message): Promise<string> {
    return this.#log().store(this.#scope, streamId, message);
  }

  async getStreamIdForEventId(eventId: string): Promise<string | undefined> {
    return (await this.#log().replay(this.#scope, eventId))?.streamId;
  }

  /** Rejects when the event was dropped, or never was. */
  async replayEventsAfter(lastEventId: string, { send }: ReplaySender<Message>): Promise<string> {
    const replay = await this.#log().replay(this.#scope, lastEventId);
    if (replay === undefined) {
      throw new Error('Event not found');
    }
    for (const { id, payload } of replay.events) {
      await send(id, JSON.parse(payload));
    }
    return replay.streamId;
  }
}

/** The part of a store that belongs to one session. */
class Scoped<Message> extends Hooks<Message> implements ScopedEventStore<Message> {
  #drop: () => void;

  constructor(log: () => HookedLog, scope: string) {
    super(log, scope);
    this.#drop = () => log().drop(scope);
  }

  drop(): void {
    this.#drop();
  }
}

/**
 * A bounded event store with an engine, and so bounds, of its own, to be passed as `eventStore`. One store
 * may serve all sessions of a server. Where the SDK's own transport serves, it keeps that transport's events,
 * within what that transport can do. `Message` is the SDK's.
 */
export class EventStore<Message = AnyMessage> extends Hooks<Message> {
  #log: HookedLog | undefined;
  #runtime: Runtime;
  #isSilent = false;

  /**
   * `store` is one that is open, which has its own `StoreOptions` already, or the address `memory:` (the default) or
   * `sqlite:PATH`. Throws what `openStore` rejects with.
   */
  constructor(store: string | Store = MEMORY, options: EngineOptions = {}) {
    super(() => this.#hooked(), '');
    if ((options as ConfigureOptions).store !== undefined) {
      invalid('the store of an EventStore is its first argument');
    }
    this.#runtime = new Runtime({ ...options, store }, { isOfEventStore: true });
    markedWith(this.#runtime, this);
  }

  /** Stores an event of the SDK's own transport, and says once that it is that one which serves. */
  override async storeEvent(streamId: string, message: Message): Promise<string> {
    if (!this.#isSilent) {
      this.#isSilent = true;
      if (!isStockTold()) {
        writeLog(
          'warn',
          "The SDK's own transport serves a server that has a Tailrope EventStore: its calls are not resumed as Tailrope " +
            'does it. Import the transport from tailrope/mcp (SDK 1.x: tailrope/mcp-v1) and give it a sessionIdGenerator; ' +
            "where the SDK's transport is meant to serve, give it eventStore.scoped(sessionId)",
        );
      }
    }
    return super.storeEvent(streamId, message);
  }

  #hooked(): HookedLog {
    this.#log ??= new HookedLog(this.#runtime);
    return this.#log;
  }

  /**
   * The part of this store that belongs to one session, for a transport of the SDK's own, which does not say whose
   * events it asks for: ids of other sessions mean nothing there. Tailrope's transports need no such thing: they tell
   * sessions apart by themselves.
   */
  scoped(sessionId: string): ScopedEventStore<Message> {
    if (typeof sessionId !== 'string' || sessionId === '') {
      invalid('a session id is a string that is not empty');
    }
    return markedWith(this.#runtime, new Scoped<Message>(() => this.#hooked(), sessionId));
  }
}

/** Whether the user knows that the SDK's own transport serves: who wants it, or was told that nothing else can. */
function isStockTold(): boolean {
  return isDisabled() || [...state.seams.values()].some((seam) => seam.difference !== undefined);
}

/** So that our transports find the runtime, also those of this package's other form (ES module or CommonJS). */
function markedWith<Marked extends object>(runtime: Runtime, store: Marked): Marked {
  return Object.defineProperty(store, runtimeOf, { value: runtime });
}

/** The engine that serves what has these options, unless it is pinned to another one. */
export function runtimeFor(options: { eventStore?: HostStore | null }): Runtime {
  return Reflect.get(options, runtimeOf) ?? runtimeOfStore(options.eventStore);
}

/** The engine that serves what is made now with this event store. */
function runtimeOfStore(store: HostStore | null | undefined): Runtime {
  if (store === undefined || store === null) {
    return sharedRuntime();
  }
  if (isStore(store) || typeof store === 'string') {
    invalid('`eventStore` takes an EventStore: new EventStore(store)');
  }
  const runtime: Runtime | undefined = Reflect.get(store, runtimeOf);
  return runtime?.current ?? runtimeOfUserStore(store);
}
