// Streams of `resumableFetch` against a scripted server.
import { resumableFetch } from 'tailrope/client';

import { within } from './raw.mjs';
import { listenTo, post, ScriptedServer } from './scripted.mjs';

/** The messages of a body. */
export const parse = (text) => (text.match(/(?<=^data: ).*$/gm) ?? []).map((line) => JSON.parse(line));
export const QUICK = { jitter: 0, initialDelayMs: 1 };
export const withoutSlack = (options = {}) => resumableFetch(undefined, { ...QUICK, ...options });

/** A call whose stream is open, with its first exchange. */
export async function called(t, options, headers, id = 1) {
  const server = await ScriptedServer.open(t);
  const fetch = options?.resume ? options : withoutSlack(options);
  const stop = new AbortController();
  t.after(() => stop.abort());
  const asked = fetch(server.url, { ...post(id, headers), signal: stop.signal });
  const exchange = (await server.next()).head();
  const response = await within(asked);
  return { server, fetch, stop, exchange, response };
}

/** A standalone stream that is open, with its first exchange. */
export async function listening(t, options, headers) {
  const server = await ScriptedServer.open(t);
  const fetch = withoutSlack(options);
  const stop = new AbortController();
  t.after(() => stop.abort());
  const asked = fetch(server.url, { ...listenTo(headers), signal: stop.signal });
  const exchange = (await server.next()).head();
  const response = await within(asked);
  return { server, fetch, stop, exchange, response };
}
