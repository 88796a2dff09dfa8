// What came on each connection of a call, and whether that is every message once, in order.
//
// Every event knows the one before it from where its client stood: a connection that resumes after an id goes on from
// the event that had it. So each connection ends a chain, from the call's first message to the last one there, and a
// client that followed it has seen exactly that. The messages came exactly once when no chain says anything else than
// what the call sent. Nothing here reads or waits.
import { type Findings, NotExactlyOnce } from './errors.mjs';
import type * as kit from './types.mjs';

const SHOWN = 40;
const LONGEST = 60;

export class Event implements kit.Event {
  readonly id: string | undefined;
  readonly message: unknown;
  readonly value: unknown;
  readonly retryMs: number | undefined;
  readonly #before: Event | undefined;

  constructor(id: string | undefined, message: unknown, retryMs: number | undefined, before: Event | undefined) {
    this.id = id;
    this.message = message;
    this.value = short(message);
    this.retryMs = retryMs;
    this.#before = before;
  }

  get isResponse(): boolean {
    return isObject(this.message) && this.message.method === undefined;
  }

  /** The messages up to this event, as a client has them that followed the connections to it. */
  static chain(head: Event | undefined): Event[] {
    const events: Event[] = [];
    for (let event = head; event !== undefined; event = event.#before) {
      if (event.message !== undefined) {
        events.push(event);
      }
    }
    return events.reverse();
  }

  /** The id of this event, or of the last before it that has one. */
  static cursor(head: Event | undefined): string | undefined {
    let event = head;
    while (event !== undefined && !event.id) {
      event = event.#before;
    }
    return event?.id;
  }
}

export class Connection implements kit.Connection {
  readonly number: number;
  readonly method: 'POST' | 'GET';
  readonly after: string | undefined;
  readonly status: number;
  readonly readsAgain: boolean;
  readonly events: Event[] = [];
  readonly gaps: string[] = [];
  end: kit.Connection['end'] = 'open';
  #head: Event | undefined;

  constructor(
    number: number,
    method: 'POST' | 'GET',
    after: string | undefined,
    status: number,
    readsAgain: boolean,
    head: Event | undefined,
  ) {
    this.number = number;
    this.method = method;
    this.after = after;
    this.status = status;
    this.readsAgain = readsAgain;
    this.#head = head;
  }

  static head(connection: Connection | undefined): Event | undefined {
    return connection === undefined ? undefined : connection.#head;
  }

  get messages(): Event[] {
    return this.events.filter((event) => event.message !== undefined);
  }

  add(id: string | undefined, message: unknown, retryMs?: number): Event {
    this.#head = new Event(id, message, retryMs, this.#head);
    this.events.push(this.#head);
    return this.#head;
  }
}

/** How the events differ from what was sent. */
interface Found {
  /** By their places in what was sent. */
  readonly lost: Map<number, unknown>;
  readonly outOfOrder: Map<number, unknown>;
  readonly repeated: Map<Event, unknown>;
  readonly foreign: Map<Event, unknown>;
  readonly others: string[];
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
export const fieldsOf = (value: unknown) => (isObject(value) ? value : {});

/**
 * A message in a few words: a progress notification's number, a log message's data, a result's text, an error's code
 * and message; the method of anything else, and a result that is no text as it is.
 */
export function short(message: unknown): unknown {
  if (!isObject(message)) {
    return message;
  }
  const { method, params, error, result } = message;
  if (method === 'notifications/progress') {
    return fieldsOf(params).progress;
  }
  if (method === 'notifications/message') {
    return fieldsOf(params).data;
  }
  if (method !== undefined) {
    return method;
  }
  if (error !== undefined) {
    const { code, message: text } = fieldsOf(error);
    return { code, message: text };
  }
  const { content } = fieldsOf(result);
  const only = Array.isArray(content) && content.length === 1 ? fieldsOf(content[0]) : undefined;
  return only?.type === 'text' ? only.text : result;
}

/**
 * Throws NotExactlyOnce unless every chain is what the call sent: `expected`, in the short form, or else what was there
 * when the stream was read again from its start.
 */
export function check(
  what: string,
  connections: readonly Connection[],
  requestId: number,
  token: string,
  expected?: readonly unknown[],
): void {
  const found: Found = { lost: new Map(), repeated: new Map(), outOfOrder: new Map(), foreign: new Map(), others: [] };
  const last = connections.filter((each) => !each.readsAgain).at(-1);
  const main = Event.chain(Connection.head(last));
  const again = Event.chain(Connection.head(connections.filter((each) => each.readsAgain).at(-1)));
  const byValue = expected !== undefined;
  const reference = byValue ? [...expected] : again.map((event) => event.value);
  const keys = byValue ? reference.map(keyOf) : again.map((event) => keyOf(event.message));
  for (const connection of connections) {
    const complete = connection === last || connection.readsAgain;
    compare(found, Event.chain(Connection.head(connection)), reference, keys, complete, byValue);
    for (const event of connection.messages) {
      if (isForeign(event, requestId, token)) {
        found.foreign.set(event, event.value);
      }
    }
  }
  const responses = main.filter((event) => event.isResponse);
  if (responses.length === 0) {
    found.others.push('no response came');
  } else if (responses.length > 1) {
    found.others.push(`${responses.length} responses came`);
  } else if (!main.at(-1)?.isResponse) {
    found.others.push('messages came after the response');
  }
  if (found.others.length > 0 || KINDS.some(([kind]) => found[kind].size > 0)) {
    throw failure(what, found, reference, main, connections);
  }
}

const KINDS: readonly (readonly [keyof Findings, string])[] = [
  ['lost', 'lost'],
  ['repeated', 'repeated'],
  ['outOfOrder', 'out of order'],
  ['foreign', 'foreign'],
];

/** Adds how the events differ from the reference; one that is not complete may stop early. */
function compare(
  found: Found,
  events: readonly Event[],
  reference: readonly unknown[],
  keys: readonly string[],
  complete: boolean,
  byValue: boolean,
): void {
  const own = events.map((event) => keyOf(byValue ? event.value : event.message));
  const wanted = complete ? keys : keys.slice(0, own.length);
  if (own.length === wanted.length && own.every((key, index) => key === wanted[index])) {
    return;
  }
  const places = new Map<string, number[]>();
  for (const [place, key] of keys.entries()) {
    places.set(key, [...(places.get(key) ?? []), place]);
  }
  const seen = new Map<string, number>();
  const matched: [number, Event][] = [];
  own.forEach((key, index) => {
    const event = events[index];
    const count = seen.get(key) ?? 0;
    const known = places.get(key);
    if (known === undefined) {
      found.foreign.set(event, event.value);
    } else if (count === known.length) {
      found.repeated.set(event, event.value);
    } else {
      matched.push([known[count], event]);
      seen.set(key, count + 1);
    }
  });
  const kept = rising(matched.map(([place]) => place));
  matched.forEach(([place, event], number) => {
    if (!kept.has(number)) {
      found.outOfOrder.set(place, event.value);
    }
  });
  const came = new Set(matched.map(([place]) => place));
  const end = complete ? keys.length : matched.reduce((most, [place]) => Math.max(most, place), -1) + 1;
  for (let place = 0; place < end; place++) {
    if (!came.has(place)) {
      found.lost.set(place, reference[place]);
    }
  }
}

/** Which of the numbers make up the longest rising row. */
function rising(places: readonly number[]): Set<number> {
  const tops: number[] = [];
  const holders: number[] = [];
  const before: number[] = [];
  places.forEach((place, number) => {
    let [low, high] = [0, tops.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle] < place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    before.push(holders[low - 1] ?? -1);
    tops[low] = place;
    holders[low] = number;
  });
  const kept = new Set<number>();
  for (let number = holders.at(-1) ?? -1; number >= 0; number = before[number]) {
    kept.add(number);
  }
  return kept;
}

/** Whether a message belongs to another call, by what it says itself. */
function isForeign({ message, isResponse }: Event, requestId: number, token: string): boolean {
  const { id, method, params } = fieldsOf(message);
  if (isResponse) {
    return id !== requestId;
  }
  return method === 'notifications/progress' && fieldsOf(params).progressToken !== token;
}

/** Text that is the same for values that are the same, whatever the order of their fields. */
function keyOf(value: unknown): string {
  return JSON.stringify(value ?? null, (_, part: unknown) =>
    isObject(part) ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1))) : part,
  );
}

function failure(
  what: string,
  found: Found,
  reference: readonly unknown[],
  main: readonly Event[],
  connections: readonly Connection[],
): NotExactlyOnce {
  const inOrder = (map: Map<number, unknown>) => [...map].sort(([a], [b]) => a - b).map(([, value]) => value);
  const lists = {
    lost: inOrder(found.lost),
    repeated: [...found.repeated.values()],
    outOfOrder: inOrder(found.outOfOrder),
    foreign: [...found.foreign.values()],
  };
  const lines = [`${what} did not come exactly once`];
  for (const [kind, name] of KINDS) {
    if (lists[kind].length > 0) {
      lines.push(`  ${name}: ${listed(lists[kind])}`);
    }
  }
  lines.push(...found.others.map((text) => `  ${text}`));
  lines.push(`  sent:     ${listed(reference)}`);
  lines.push(`  received: ${listed(main.map((event) => event.value))}`);
  lines.push(...report(connections));
  return new NotExactlyOnce(lines.join('\n'), lists);
}

const ENDS = { open: 'still open', cut: 'cut by the test', closed: 'closed by the server', broken: 'broken' };

/** A line for each connection: how it began, what it carried, how it ended. */
export function report(connections: readonly Connection[]): string[] {
  return connections.map(({ number, method, after, status, readsAgain, messages, gaps, end }) => {
    const begin = after === undefined ? method : `${method} after ${after}`;
    const again = readsAgain ? ', to read again' : '';
    const carried = messages.length > 0 ? listed(messages.map((event) => event.value)) : 'no message';
    const told = gaps.map((gap) => `; ${gap}`).join('');
    return `  connection ${number}: ${begin}${again}: ${status}: ${carried}${told}; ${ENDS[end]}`;
  });
}

/** The values on one line, the middle of a long one left out. */
function listed(values: readonly unknown[]): string {
  let words = values.map((value) => spaced(value ?? null));
  words = words.map((word) => (word.length <= LONGEST ? word : `${word.slice(0, LONGEST - 3)}...`));
  if (words.length > SHOWN) {
    const half = SHOWN / 2;
    words = [...words.slice(0, half), `... ${words.length - 2 * half} more ...`, ...words.slice(-half)];
  }
  return words.length > 0 ? words.join(', ') : 'nothing';
}

/** JSON with a space after commas and colons, as the kit of Python writes it. */
function spaced(value: unknown): string {
  if (Array.isArray(value)) {
    return `[${value.map((part) => spaced(part ?? null)).join(', ')}]`;
  }
  if (isObject(value)) {
    const fields = Object.entries(value).filter(([, part]) => part !== undefined);
    return `{${fields.map(([name, part]) => `${JSON.stringify(name)}: ${spaced(part)}`).join(', ')}}`;
  }
  return JSON.stringify(value);
}
