// Which options an SDK has: those that it reads. So one that is newer than this package has its own.
import { SESSION_OPTIONS } from '../option-names.mjs';
import { checkNames } from '../options.mjs';
import type { StockClass } from './sdk.mjs';

/** What transports, routers and handlers take beside the SDKs' options. */
const OWN_OPTIONS = ['principal', 'serverName'];

/** Names of options; undefined where an SDK takes whatever it is given. */
export type Names = readonly string[] | undefined;

/** The options that a function of an SDK reads. */
export function readBy(take: (options: object) => unknown): Names {
  const names = new Set<string>();
  let takesAny = false;
  const note = (name: string | symbol) => void (typeof name === 'string' && names.add(name));
  const options = new Proxy(
    {},
    {
      get: (_, name) => note(name),
      has: (_, name) => note(name) ?? false,
      ownKeys() {
        takesAny = true;
        return [];
      },
    },
  );
  try {
    take(options);
  } catch {
    return undefined;
  }
  return takesAny ? undefined : [...names];
}

const ofClasses = new WeakMap<StockClass, Names>();

/** The options of an SDK's transport. */
export function optionsOf(Stock: StockClass): Names {
  if (!ofClasses.has(Stock)) {
    ofClasses.set(
      Stock,
      readBy((options) => new Stock(options)),
    );
  }
  return ofClasses.get(Stock);
}

/** Refuses options that neither an SDK nor Tailrope has. `more` are those that only this place takes. */
export function checkGiven(options: object, names: Names, of: string, ...more: string[]): void {
  if (names !== undefined) {
    checkNames(options, [...names, ...OWN_OPTIONS, ...more], of);
  }
}

/** Those of the options that are named. */
export function only<Options extends object>(options: Options, names: Names): Options {
  return names === undefined
    ? options
    : (Object.fromEntries(Object.entries(options).filter(([name]) => names.includes(name))) as Options);
}

/** Those of a handler's options that its sessions have. */
export function ofSessions<Options extends object>(options: Options): Options {
  const shared = ['keepAliveMs', 'maxRequestBodySize', 'onAdopted', 'onerror'];
  return only(options, [...SESSION_OPTIONS, ...OWN_OPTIONS, ...shared]);
}
