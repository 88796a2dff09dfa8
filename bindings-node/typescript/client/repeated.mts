// Requests about tasks (2026-07-28): they are sent until they are answered, because no SDK asks twice.
import type { ClientRepeats } from '../native.mjs';
import { type Asked, overlay, retryAfterMs } from './http.mjs';
import type { Settings } from './options.mjs';

/** Of the decoded body, whose length and framing are other ones. */
const NOT_OURS = ['content-encoding', 'content-length', 'transfer-encoding'];

/** Sends a request until its answer is one. It does the same however often it comes. */
export async function repeated(
  repeats: ClientRepeats,
  asked: Asked,
  { fetch, headers: more }: Settings,
): Promise<Response> {
  const { request, init, signal } = asked;
  const headers = new Headers(asked.headers);
  for (let isFirst = true; ; isFirst = false) {
    let answer: Response | undefined;
    let fault: unknown;
    try {
      // The body of a `Request` can be sent once.
      const input = request?.clone() ?? asked.input;
      answer = await whole(await fetch(input, isFirst ? init : { ...init, headers }));
    } catch (error) {
      fault = error;
    }
    const now = Math.floor(performance.now());
    const jitter = Math.floor(Math.random() * 2 ** 32);
    const waitMs = signal?.aborted
      ? null
      : repeats.after(now, jitter, answer?.status, answer && retryAfterMs(answer.headers));
    if (waitMs === null) {
      if (answer === undefined) {
        throw fault;
      }
      return answer;
    }
    await pause(waitMs, signal);
    await overlay(headers, more);
  }
}

/** The same answer with its whole body: one that breaks amid it is none. */
async function whole(answer: Response): Promise<Response> {
  const body = await answer.arrayBuffer();
  const headers = new Headers(answer.headers);
  NOT_OURS.forEach((name) => headers.delete(name));
  const { status, statusText, url } = answer;
  const made = new Response(body.byteLength > 0 ? body : null, { status, statusText, headers });
  Object.defineProperty(made, 'url', { value: url });
  return made;
}

/** Waits, unless nobody does any more. */
function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const left = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', left);
      resolve();
    }, ms);
    signal?.addEventListener('abort', left, { once: true });
  });
}
