// What came on each connection of a call, and whether that is every message once, in order.
//
// Every event knows the one before it from where its client stood: a connection that resumes after an id goes on from
// the event that had it. So each connection ends a chain, from the call's first message to the last one there, and a
// client that followed it has seen exactly that. The messages came exactly once when no chain says anything else than
// what the call sent. Nothing here reads or waits.
import { NotExactlyOnce } from './testing-errors.mjs';

const SHOWN = 40;
const LONGEST = 60;

/** One event. `message` is the JSON-RPC message, undefined for a priming event; `value` its short form. */
export class Event {
  #before;

  constructor(id, message, retryMs, before) {
    this.id = id;
    this.message = message;
    this.value = short(message);
    this.retryMs = retryMs;
    this.#before = before;
  }

  get isResponse() {
    return isObject(this.message) && this.message.method === undefined;
  }

  /** The messages up to this event, as a client has them that followed the connections to it. */
  static chain(head) {
    const events = [];
    for (let event = head; event !== undefined; event = event.#before) {
      if (event.message !== undefined) {
        events.push(event);
      }
    }
    return events.reverse();
  }

  /** The id of this event, or of the last before it that has one. */
  static cursor(head) {
    let event = head;
    while (event !== undefined && !event.id) {
      event = event.#before;
    }
    return event?.id;
  }
}

/** One connection of a call. */
export class Connection {
  #head;
  events = [];
  gaps = [];
  end = 'open';

  constructor(number, method, after, status, readsAgain, head) {
    Object.assign(this, { number, method, after, status, readsAgain });
    this.#head = head;
  }

  static head(connection) {
    return connection.#head;
  }

  get messages() {
    return this.events.filter((event) => event.message !== undefined);
  }

  add(id, message, retryMs) {
    this.#head = new Event(id, message, retryMs, this.#head);
    this.events.push(this.#head);
    return this.#head;
  }
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * A message in a few words: a progress notification's number, a log message's data, a result's text, an error's code and
 * message; the method of anything else, and a result that is no text as it is.
 */
export function short(message) {
  if (!isObject(message)) {
    return message;
  }
  const { method, params, error, result } = message;
  if (method === 'notifications/progress') {
    return params?.progress;
  }
  if (method === 'notifications/message') {
    return params?.data;
  }
  if (method !== undefined) {
    return method;
  }
  if (error !== undefined) {
    return { code: error.code, message: error.message };
  }
  const content = result?.content;
  return Array.isArray(content) && content.length === 1 && content[0].type === 'text' ? content[0].text : result;
}

/**
 * Throws NotExactlyOnce unless every chain is what the call sent: `expected`, in the short form, or else what was there
 * when the stream was read again from its start.
 */
export function check(what, connections, requestId, token, expected) {
  const found = { lost: new Map(), repeated: new Map(), outOfOrder: new Map(), foreign: new Map(), others: [] };
  const again = connections.filter((each) => each.readsAgain);
  const last = connections.filter((each) => !each.readsAgain).at(-1);
  const main = Event.chain(Connection.head(last));
  const byValue = expected !== undefined;
  const reference = byValue ? [...expected] : Event.chain(Connection.head(again.at(-1))).map((event) => event.value);
  const keys = byValue
    ? reference.map(keyOf)
    : Event.chain(Connection.head(again.at(-1))).map((event) => keyOf(event.message));
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
  } else if (!main.at(-1).isResponse) {
    found.others.push('messages came after the response');
  }
  if (found.others.length > 0 || KINDS.some(([kind]) => found[kind].size > 0)) {
    throw failure(what, found, reference, main, connections);
  }
}

const KINDS = [
  ['lost', 'lost'],
  ['repeated', 'repeated'],
  ['outOfOrder', 'out of order'],
  ['foreign', 'foreign'],
];

/** Adds how the events differ from the reference; one that is not complete may stop early. */
function compare(found, events, reference, keys, complete, byValue) {
  const own = events.map((event) => keyOf(byValue ? event.value : event.message));
  const wanted = complete ? keys : keys.slice(0, own.length);
  if (own.length === wanted.length && own.every((key, index) => key === wanted[index])) {
    return;
  }
  const places = new Map();
  keys.forEach((key, place) => places.set(key, [...(places.get(key) ?? []), place]));
  const seen = new Map();
  const matched = [];
  own.forEach((key, index) => {
    const event = events[index];
    const count = seen.get(key) ?? 0;
    if (!places.has(key)) {
      found.foreign.set(event, event.value);
    } else if (count === places.get(key).length) {
      found.repeated.set(event, event.value);
    } else {
      matched.push([places.get(key)[count], event]);
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
function rising(places) {
  const tops = [];
  const holders = [];
  const before = [];
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
  const kept = new Set();
  for (let number = holders.at(-1) ?? -1; number >= 0; number = before[number]) {
    kept.add(number);
  }
  return kept;
}

/** Whether a message belongs to another call, by what it says itself. */
function isForeign(event, requestId, token) {
  if (event.isResponse) {
    return event.message.id !== requestId;
  }
  return event.message?.method === 'notifications/progress' && event.message.params?.progressToken !== token;
}

/** Text that is the same for values that are the same, whatever the order of their fields. */
function keyOf(value) {
  return JSON.stringify(value ?? null, (_, part) =>
    isObject(part) ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1))) : part,
  );
}

function failure(what, found, reference, main, connections) {
  const inOrder = (map) => [...map].sort(([a], [b]) => a - b).map(([, value]) => value);
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
export function report(connections) {
  return connections.map(({ number, method, after, status, readsAgain, messages, gaps, end }) => {
    const begin = after === undefined ? method : `${method} after ${after}`;
    const again = readsAgain ? ', to read again' : '';
    const carried = messages.length > 0 ? listed(messages.map((event) => event.value)) : 'no message';
    const told = gaps.map((gap) => `; ${gap}`).join('');
    return `  connection ${number}: ${begin}${again}: ${status}: ${carried}${told}; ${ENDS[end]}`;
  });
}

/** The values on one line, the middle of a long one left out. */
function listed(values) {
  let words = values.map((value) => spaced(value ?? null));
  words = words.map((word) => (word.length <= LONGEST ? word : `${word.slice(0, LONGEST - 3)}...`));
  if (words.length > SHOWN) {
    const half = SHOWN / 2;
    words = [...words.slice(0, half), `... ${words.length - 2 * half} more ...`, ...words.slice(-half)];
  }
  return words.length > 0 ? words.join(', ') : 'nothing';
}

/** JSON with a space after commas and colons, as the kit of Python writes it. */
function spaced(value) {
  if (Array.isArray(value)) {
    return `[${value.map((part) => spaced(part ?? null)).join(', ')}]`;
  }
  if (isObject(value)) {
    const fields = Object.entries(value).filter(([, part]) => part !== undefined);
    return `{${fields.map(([name, part]) => `${JSON.stringify(name)}: ${spaced(part)}`).join(', ')}}`;
  }
  return JSON.stringify(value);
}
