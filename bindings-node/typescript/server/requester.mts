// Who sends a request, as far as a host can know it. Objects are only read here: which members count is the core's to say.
import type { IncomingMessage } from 'node:http';

import { invalid } from '../errors.mjs';
import { callHost, traceOf } from '../host.mjs';
import { Engine } from '../native.mjs';
import { writeLog } from '../runtime.mjs';
import type { Exchange } from './exchange.mjs';

/**
 * Names the user who sends a request; a session is found by its own user alone. `undefined` leaves it to what
 * authentication and credentials say: docs/security.md.
 */
export type Principal = (request: IncomingMessage | Request) => string | null | undefined;

/** What options say of requesters and servers. */
export interface Identity {
  principal: Principal | undefined;
  logUser: Principal | undefined;
  serverName: string | undefined;
  /** All that say who sends a request. */
  identityHeaders: ReadonlySet<string>;
}

/** The headers that say it at every server. */
export const IDENTITY_HEADERS = Engine.identityHeaders();
const MAX_DEPTH = 6;
const MAX_MEMBERS = 1_000;
/**
 * Stands for a user that cannot be read: something in it may tell it from another user. It is no JSON, so it identifies
 * nobody.
 */
const UNREADABLE = '';

/** Notes in the exchange who sends it and for which server, for the engine: docs/security.md. */
export function identify(exchange: Exchange, { principal, logUser, serverName, identityHeaders }: Identity): void {
  exchange.server = serverName ?? exchange.endpoint;
  const named: unknown = principal?.(exchange.request) ?? undefined;
  if (named !== undefined && typeof named !== 'string') {
    // Where it is a promise, nobody waits for it.
    callHost(
      () => named,
      () => {},
    );
    throw new TypeError(`principal() returned a ${typeof named}, not a string that names the user or undefined`);
  }
  const userJson = userJsonOf(exchange);
  const credentials = exchange.headersOf((name) => identityHeaders.has(name));
  const logged = logUser === undefined ? undefined : logNameOf(exchange, logUser);
  exchange.requester =
    named === undefined && userJson === undefined && logged === undefined && credentials.length === 0
      ? undefined
      : { named, logUser: logged, userJson, credentials };
}

/** What the log calls the sender. A function that fails names nobody. */
function logNameOf(exchange: Exchange, logUser: Principal): string | undefined {
  let named: unknown;
  callHost(
    () => {
      named = logUser(exchange.request);
    },
    (error) => writeLog('error', `logUser failed: ${traceOf(error)}`),
  );
  return typeof named === 'string' ? named : undefined;
}

class Unreadable extends Error {}

/** The user of an exchange as JSON: what the engine counts of it, or all of it where that names nobody. */
function userJsonOf(exchange: Exchange): string | undefined {
  try {
    const { user } = exchange;
    if (user === undefined || user === null || user === false) {
      return undefined;
    }
    if (!isObject(user)) {
      return JSON.stringify(jsonOf(user, 0));
    }
    const facts = JSON.stringify(countingOf(user, 0));
    if (Engine.namesUser(facts)) {
      return facts;
    }
    const plain = memberOf(user, 'toJSON', true);
    const own: unknown = typeof plain === 'function' ? Reflect.apply(plain, user, []) : user;
    if (own !== user && isObject(own)) {
      const counting = JSON.stringify(countingOf(own, 0));
      if (Engine.namesUser(counting)) {
        return counting;
      }
    }
    return JSON.stringify(isObject(own) && !Array.isArray(own) ? allOf(own) : jsonOf(own, 0));
  } catch {
    // What a host's object does when it is read is its own.
    return UNREADABLE;
  }
}

function isObject(value: unknown): value is object {
  return (typeof value === 'object' && value !== null) || typeof value === 'function';
}

const counts = new Map<string, boolean>();
const namesOfClasses = new WeakMap<object, string[]>();

function isUserMember(name: string): boolean {
  let does = counts.get(name);
  if (does === undefined) {
    does = Engine.isUserMember(name);
    if (counts.size < MAX_MEMBERS) {
      counts.set(name, does);
    }
  }
  return does;
}

/** The names of the members of an object that count: its own, and those of its classes. */
function namesOf(source: object): string[] {
  const own = Object.getOwnPropertyNames(source).filter(isUserMember);
  const of: object | null = Object.getPrototypeOf(source);
  return of === null ? own : [...own, ...namesOfClass(of)];
}

function namesOfClass(of: object): string[] {
  if (of === Object.prototype || of === Array.prototype || of === Function.prototype) {
    return [];
  }
  let names = namesOfClasses.get(of);
  if (names === undefined) {
    names = namesOf(of);
    namesOfClasses.set(of, names);
  }
  return names;
}

/** A member of an object; nothing where it is a function, or cannot be read. */
function memberOf(source: object, name: string, isFunction = false): unknown {
  try {
    const value: unknown = Reflect.get(source, name);
    return typeof value === 'function' && !isFunction ? undefined : value;
  } catch {
    return undefined;
  }
}

/** The members that count, also those that are nested. */
function countingOf(source: object, depth: number): Record<string, unknown> {
  if (depth > MAX_DEPTH) {
    throw new Unreadable();
  }
  const facts: Record<string, unknown> = Object.create(null);
  for (const name of namesOf(source)) {
    const value = memberOf(source, name);
    if (value !== undefined && value !== null) {
      facts[name] = jsonOf(value, depth + 1);
    }
  }
  return facts;
}

/** A value as JSON. Of an object, the members that count, or its text. */
function jsonOf(value: unknown, depth: number): unknown {
  if (depth > MAX_DEPTH) {
    throw new Unreadable();
  }
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return value;
    case 'number':
    case 'bigint':
      // As text: JSON has neither all numbers nor all digits.
      return String(value);
    case 'object':
      break;
    default:
      throw new Unreadable();
  }
  if (value === null) {
    return null;
  }
  if (value instanceof Uint8Array) {
    return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex');
  }
  if (Array.isArray(value)) {
    return few(value).map((item) => jsonOf(item, depth + 1));
  }
  const counting = countingOf(value, depth);
  if (Object.keys(counting).length > 0) {
    return counting;
  }
  const of: object | null = Object.getPrototypeOf(value);
  return of === null || of === Object.prototype ? allOf(value, depth) : textOf(value);
}

/** The text of an object that has one of its own. */
function textOf(value: object): string {
  const own = memberOf(value, 'toString', true);
  const text: unknown =
    typeof own === 'function' && own !== Object.prototype.toString ? Reflect.apply(own, value, []) : '';
  if (typeof text !== 'string' || text === '' || text.startsWith('[object ')) {
    throw new Unreadable();
  }
  return text;
}

/** All that an object has of its own, where nothing names the user. */
function allOf(source: object, depth = 0): Record<string, unknown> {
  const facts: Record<string, unknown> = Object.create(null);
  for (const name of few(Object.keys(source))) {
    const value: unknown = Reflect.get(source, name);
    if (value !== undefined && typeof value !== 'function') {
      facts[name] = jsonOf(value, depth + 1);
    }
  }
  return facts;
}

function few<Item>(items: Item[]): Item[] {
  if (items.length > MAX_MEMBERS) {
    throw new Unreadable();
  }
  return items;
}

/** Checks the option `principal`, or another one that names users. */
export function checkPrincipal(principal: Principal | undefined, option = 'principal'): Principal | undefined {
  if (principal !== undefined && (typeof principal !== 'function' || principal.constructor.name === 'AsyncFunction')) {
    invalid(`${option} must be a plain function that takes a request and returns a string or undefined`);
  }
  return principal;
}
