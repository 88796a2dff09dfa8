// What others have put around the methods of the SDKs' classes, as tracing and monitoring do: it runs around ours, too.
//
// Such a wrapper calls the SDK's own method in the end, and nothing can be put in the place of that. So our classes call it, and the
// SDK's method finds ours where it would go on: see `StockView`, and `handlePostRequest` of our transports. That costs what
// the SDK's method costs, and is done only where there is a wrapper.
import { AsyncLocalStorage } from 'node:async_hooks';

import { writeLog } from '../runtime.mjs';
import type { CloseOptions } from './close.mjs';
import type { Exchange } from './exchange.mjs';
import type { Message, RequestId, StockClass, StockTransport } from './sdk.mjs';
import type { SessionServer } from './session-server.mjs';

/** What the SDKs' own methods have in their text. */
const OF_SDK =
  /_webStandardTransport|_requestToStreamMapping|_streamMapping|_standaloneSseStreamId|validateRequestHeaders/;
/** What what is around a method has in its text, which may look at an SDK's members as well. */
const OF_WRAPPERS = /\.(call|apply|bind)\(|\bReflect\b/;
/** What the SDKs' methods use, and what `StockView` has to be in the place of. */
const USED = ['_streamMapping', '_requestToStreamMapping', '_requestResponseMap', '_eventStore', '_closed'];
/** The methods of theirs that ours take the place of. */
const HOOKS = ['validateRequestHeaders', 'handlePostRequest'];

type Wrapped = 'handleRequest' | 'send' | 'closeSSEStream' | 'closeStandaloneSSEStream';

const known = new WeakMap<object, boolean>();
const told = new WeakSet<StockClass>();

/** Whether a method of an SDK's class is not its own. */
export function isWrapped(Stock: StockClass, name: Wrapped): boolean {
  const method: unknown = Stock.prototype[name];
  if (typeof method !== 'function') {
    return false;
  }
  let is = known.get(method);
  if (is === undefined) {
    const text: string = Function.prototype.toString.call(method);
    // A wrapper that is taken for the SDK's own would not run. The other way round only costs time.
    const isMethod = new RegExp(`^(async )?${name}\\(`).test(text);
    is = !isMethod || !OF_SDK.test(text) || OF_WRAPPERS.test(text);
    known.set(method, is);
  }
  return is;
}

/** Whether wrappers of an SDK's class can be called around what a transport of ours does. Says once where they cannot. */
export function canCall(transport: StockTransport, Stock: StockClass): boolean {
  const isKnown = USED.every((name) => name in transport) && HOOKS.every((name) => name in Stock.prototype);
  if (!isKnown && !told.has(Stock)) {
    told.add(Stock);
    writeLog(
      'warn',
      `what others have put around methods of the SDK's ${Stock.name} does not run: the SDK has changed`,
    );
  }
  return isKnown;
}

/** An exchange on its way through the methods of a class of the SDK's, and its request where the platform is the web. */
interface Passed {
  exchange: Exchange;
  request: Request | undefined;
}

const passed = new AsyncLocalStorage<{ to: object; passed: Passed | undefined }>();

/** Calls a method of the SDK's, behind which `to` takes the exchange. */
export function pass<Result>(exchange: Exchange, to: object, call: () => Result, request?: Request): Result {
  return passed.run({ to, passed: { exchange, request } }, call);
}

/** The exchange that was passed to this transport, once: what handlers call later has nothing to do with it. */
export function taken(by: object): Passed | undefined {
  const store = passed.getStore();
  if (store?.to !== by) {
    return undefined;
  }
  const { passed: taken } = store;
  store.passed = undefined;
  return taken;
}

interface Key {
  id: RequestId | undefined;
  isSent: boolean;
}

/** A map of the SDK's that keeps nothing. */
class Empty<Value> extends Map<unknown, Value> {
  override set(): this {
    return this;
  }
}

/** Where the SDK looks up the streams of requests. */
class Keys extends Empty<Key> {
  override get(id: RequestId): Key {
    return { id, isSent: false };
  }
}

/** Where the SDK looks up the connections of streams. */
class Connections extends Empty<{ cleanup: () => void }> {
  #close: (id: RequestId | undefined) => void;

  constructor(close: (id: RequestId | undefined) => void) {
    super();
    this.#close = close;
  }

  override get(key: Key | string): { cleanup: () => void } {
    const { id, isSent }: Key = typeof key === 'string' ? { id: undefined, isSent: false } : key;
    // The SDK would end the stream behind its last response: the engine does.
    return { cleanup: () => isSent || this.#close(id) };
  }
}

interface Closing {
  options: CloseOptions | undefined;
  hasClosed?: boolean;
}

/** A session as the methods of an SDK's class see it: they store events, and close connections. */
export class StockView {
  #sessions: SessionServer;
  #closing: Closing | undefined;

  constructor(transport: object, sessions: SessionServer) {
    this.#sessions = sessions;
    Object.assign(transport, {
      _requestToStreamMapping: new Keys(),
      _streamMapping: new Connections((id) => this.#close(id)),
      _requestResponseMap: new Empty(),
      _enableJsonResponse: false,
      _eventStore: { storeEvent: (key: Key | string, message: Message) => this.#send(key, message) },
    });
  }

  async #send(key: Key | string, message: Message): Promise<string> {
    if (typeof key === 'string') {
      await this.#sessions.send(message);
    } else {
      key.isSent = true;
      await this.#sessions.send(message, { relatedRequestId: key.id });
    }
    return '';
  }

  #close(id: RequestId | undefined): void {
    const { options } = this.#closing ?? {};
    const hasClosed =
      id === undefined ? this.#sessions.closeStandalone(options) : this.#sessions.closeConnection(id, options);
    if (this.#closing !== undefined) {
      this.#closing.hasClosed = hasClosed;
    }
  }

  /** Calls a method that closes a connection. The SDK's own knows no options. */
  closing(options: CloseOptions | undefined, call: () => void): boolean | undefined {
    const closing: Closing = { options };
    this.#closing = closing;
    try {
      call();
    } finally {
      this.#closing = undefined;
    }
    return closing.hasClosed;
  }
}
