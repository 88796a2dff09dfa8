// Event stores by their address, and which options are a store's.
import { invalid, ours } from '../errors.mjs';
import { Store as NativeStore } from '../native.mjs';
import { STORE_OPTIONS } from '../option-names.mjs';
import { checkNames } from '../options.mjs';

/** What can be set on an event store. What is not named keeps its default. */
export interface StoreOptions {
  /** Events kept for one stream. Default 10,000. */
  maxEventsPerStream?: number;
  /** Bytes kept for one stream. Default 8 MiB. */
  maxBytesPerStream?: number;
  /** Bytes kept for one session. Default 64 MiB. */
  maxBytesPerSession?: number;
  /** Bytes kept in all. Default 512 MiB. */
  maxBytes?: number;
  /** A larger event is not kept: a notification throws, a response is sent once. Default 64 MiB. */
  maxEventBytes?: number;
  /** How long a finished stream stays readable. Default 600,000 (10 minutes). */
  retentionMs?: number;
  /** Events older than this are trimmed when their stream is written again. Default 3,600,000 (1 hour). */
  maxAgeMs?: number;
  /**
   * What a durable store promises of an event that is stored: it survives the end of the process (`process`, the
   * default), or also a power failure (`power`), for which every commit waits for the disk.
   */
  durability?: 'process' | 'power';
  /**
   * Payloads are encrypted at rest with the first of these keys and read with any: 64 hexadecimal digits each, as
   * `openssl rand -hex 32` writes them.
   */
  encryptionKeys?: string[];
  /**
   * A process that has given no sign of life for so long counts as gone: the requests that it ran get their error
   * from the processes that serve their readers. Default 10,000.
   */
  ownerLostMs?: number;
}

/**
 * An open event store. Engines of its thread may share it; workers open their own. Nothing has to be closed: it
 * goes with the last that uses it.
 */
export interface Store {
  /** Where it is, without user, password and settings. */
  readonly address: string;
  toJSON(): { address: string };
}

declare module '../native-api.cjs' {
  interface Store {
    toJSON(): { address: string };
  }
}

type NativeOptions = ConstructorParameters<typeof NativeStore>[1];

/** Options that are numbers. The native half says which names and values there are. */
export type NumberOptions = Record<string, number | 'auto'>;

const shown: Record<string | symbol, (this: NativeStore) => unknown> = {
  toString() {
    return `Store(${this.address})`;
  },
  toJSON() {
    return { address: this.address };
  },
  [Symbol.for('nodejs.util.inspect.custom')]() {
    return this instanceof NativeStore ? this.toString() : 'Store {}';
  },
};
for (const name of Reflect.ownKeys(shown)) {
  Object.defineProperty(NativeStore.prototype, name, { value: shown[name], configurable: true, writable: true });
}

/** Of options that are numbers; what else they may be the native half says. */
function checkNumbers(options: object): asserts options is NumberOptions {
  for (const [name, value] of Object.entries(options)) {
    if (value !== 'auto' && (typeof value !== 'number' || !(value >= 0))) {
      invalid(`${name} must be a number that is not negative`);
    }
  }
}

/** Whether this is a store that `openStore` made. */
export function isStore(value: unknown): value is NativeStore {
  return value instanceof NativeStore;
}

/** The options of a store, whose kinds are right. */
function checked(address: unknown, options: StoreOptions): [string, NativeOptions] {
  if (typeof address !== 'string') {
    invalid(
      `a store is an address ('memory:', 'sqlite:PATH', 'redis://HOST', 'postgres://HOST/DATABASE') or what openStore() ` +
        `resolved to, not ${address === null ? 'null' : typeof address}`,
    );
  }
  checkNames(options, STORE_OPTIONS, 'an event store');
  const { durability, encryptionKeys, ...numbers } = options;
  checkNumbers(numbers);
  const others: NativeOptions = {};
  if (durability !== undefined) {
    others.durability =
      typeof durability === 'string' ? durability : invalid("durability must be 'process' or 'power'");
  }
  if (encryptionKeys !== undefined) {
    const areKeys = Array.isArray(encryptionKeys) && encryptionKeys.every((key) => typeof key === 'string');
    others.encryptionKeys = areKeys ? encryptionKeys : invalid('encryptionKeys must be a list of strings');
  }
  return [address, { ...numbers, ...others }];
}

/**
 * Opens an event store: `memory:`, `sqlite:PATH` for a file that the processes of one machine share and that survives
 * them, `redis://...` or `postgres://...` for processes of any machine. Resolves when the store can be used, which may
 * take some seconds on a network; other work of this thread goes on meanwhile.
 *
 * @throws (rejects with) a `TailropeError` with code `store_not_opened` that says what was tried, or `invalid_argument` for an
 * unknown option or a value out of range. Neither shows what is secret in an address.
 */
export async function openStore(address: string, options: StoreOptions = {}): Promise<Store> {
  try {
    return await NativeStore.open(...checked(address, options));
  } catch (error) {
    throw ours(error);
  }
}

/**
 * The store that `store` and the options of it among `options` mean, and the other options: those of an engine.
 * An address is opened, if that needs no network; a store that is open has its options already.
 */
export function storeOf(store: string | Store, options: object): [NativeStore, NumberOptions] {
  const entries = Object.entries(options);
  const isOfStore = ([name]: [string, unknown]) => STORE_OPTIONS.includes(name);
  const own = entries.filter(isOfStore);
  const rest: Record<string, unknown> = Object.fromEntries(entries.filter((entry) => !isOfStore(entry)));
  checkNumbers(rest);
  if (!isStore(store)) {
    return [new NativeStore(...checked(store, Object.fromEntries(own))), rest];
  }
  const [first] = own;
  if (first !== undefined) {
    invalid(`${first[0]} is an option of the event store, which is open already: give it to openStore()`);
  }
  return [store, rest];
}

/** What holds of a store's options where a user's own store keeps the events: the bounds. */
export function boundsOf({ durability, encryptionKeys, ownerLostMs, ...bounds }: StoreOptions): NumberOptions {
  checkNumbers(bounds);
  return bounds;
}
