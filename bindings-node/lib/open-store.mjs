// Event stores by their address, and which options are a store's.
import { Engine, Store } from './native.mjs';

const STORE_OPTIONS = new Set(['durability', 'encryptionKeys', ...Engine.numberOptions(true)]);

/** The other options of an engine, and where options belong that are not ones of it. */
const ENGINE_OPTIONS = ['principal', 'sessionIdleMs', 'store', ...Engine.numberOptions(false)];
const ELSEWHERE = {
  onUnsupported: 'configure()',
  preferResumable: 'createResumableMcpHandler()',
  enableJsonResponse: 'a transport',
  eventStore: 'a transport',
  onsessioninitialized: 'a transport',
  onsessionclosed: 'a transport',
  retryInterval: 'a transport',
  sessionIdGenerator: 'a transport',
};

const shown = {
  toString() {
    return `Store(${this.address})`;
  },
  toJSON() {
    return { address: this.address };
  },
  [Symbol.for('nodejs.util.inspect.custom')]() {
    return this instanceof Store ? this.toString() : 'Store {}';
  },
};
for (const name of Reflect.ownKeys(shown)) {
  Object.defineProperty(Store.prototype, name, { value: shown[name], configurable: true, writable: true });
}

/** Throws what every wrong option throws. */
export function invalid(message) {
  throw Object.assign(new TypeError(message), { code: 'invalid_argument' });
}

/** Of options that are numbers; what else they may be the native half says. */
export function checkNumbers(options) {
  for (const [name, value] of Object.entries(options)) {
    const isNumber = typeof value === 'number' && value >= 0;
    checkName(name, isNumber);
    if (!isNumber) {
      invalid(`${name} must be a number that is not negative`);
    }
  }
}

/** What no engine and no store has an option for. The native half knows the names of those that are numbers. */
function checkName(name, isNumber) {
  if (Object.hasOwn(ELSEWHERE, name)) {
    invalid(`${name} is an option of ${ELSEWHERE[name]}: give it there`);
  }
  const plain = (text) => text.replaceAll('_', '').toLowerCase();
  const meant = [...STORE_OPTIONS, ...ENGINE_OPTIONS].find((known) => plain(known) === plain(name));
  if (meant !== undefined && meant !== name) {
    invalid(`unknown option ${name}; did you mean ${meant}?`);
  }
  if (meant === undefined && !isNumber) {
    invalid(`unknown option ${name}`);
  }
}

/** Whether this is a store that `openStore` made. */
export function isStore(value) {
  return value instanceof Store;
}

/** The options of a store, whose kinds are right. */
function checked(address, options) {
  if (typeof address !== 'string') {
    invalid(
      `a store is an address ('memory:', 'sqlite:PATH', 'redis://HOST', 'postgres://HOST/DATABASE') or what openStore() ` +
        `resolved to, not ${address === null ? 'null' : typeof address}`,
    );
  }
  const { durability, encryptionKeys, ...numbers } = options;
  checkNumbers(numbers);
  const others = {};
  if (durability !== undefined) {
    others.durability = typeof durability === 'string' ? durability : invalid("durability must be 'process' or 'power'");
  }
  if (encryptionKeys !== undefined) {
    const areKeys = Array.isArray(encryptionKeys) && encryptionKeys.every((key) => typeof key === 'string');
    others.encryptionKeys = areKeys ? encryptionKeys : invalid('encryptionKeys must be a list of strings');
  }
  return { ...numbers, ...others };
}

/** Opens an event store. This thread does not wait for it. */
export async function openStore(address, options = {}) {
  return Store.open(address, checked(address, options));
}

/**
 * The store that `store` and the options of it among `options` mean, and the other options: those of an engine.
 * An address is opened, if that needs no network; a store that is open has its options already.
 */
export function storeOf(store, options) {
  const entries = Object.entries(options);
  const isOfStore = ([name]) => STORE_OPTIONS.has(name);
  const own = entries.filter(isOfStore);
  const rest = Object.fromEntries(entries.filter((entry) => !isOfStore(entry)));
  checkNumbers(rest);
  if (!isStore(store)) {
    return [new Store(store, checked(store, Object.fromEntries(own))), rest];
  }
  if (own.length > 0) {
    invalid(`${own[0][0]} is an option of the event store, which is open already: give it to openStore()`);
  }
  return [store, rest];
}

/** What holds of a store's options where a user's own store keeps the events: the bounds. */
export function boundsOf({ durability, encryptionKeys, ownerLostMs, ...options }) {
  return options;
}
