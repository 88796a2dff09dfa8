// What is counted on this thread, also for Prometheus, and whether it can serve.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { isMainThread, threadId } from 'node:worker_threads';

import { Engine } from './native.mjs';
import { living } from './runtime.mjs';

/** How well something is. What is `degraded` serves; what is `unavailable` refuses. */
export type Condition = 'ok' | 'degraded' | 'unavailable';

/** Whether this thread can serve. */
export interface Health {
  /** The worst of the others. */
  status: Condition;
  /**
   * The event store: for how long it has been away, 0 while it is there; for how long it has refused what was to be stored, as
   * on a full disk, 0 while it stores; and whether calls are refused, because another process may have the sessions by now.
   */
  store: { status: Condition; awayMs: number; refusedMs: number; refusing: boolean };
  /** Whether the process is going away. */
  drain: { status: Condition; draining: boolean };
  /** What waits for the event store. */
  waiting: { status: Condition; bytes: number };
}

const engines = () => [...living()].map(({ engine }) => engine);

/** What Tailrope did and holds on this thread, by name: docs/reference/counters.md. Several engines are put together. */
export function stats(): Record<string, number> {
  return Engine.statsOf(engines());
}

/**
 * The same as the text that Prometheus reads. Each sample has the label `process`, which is the id of this process, and on
 * a worker thread also that of the thread.
 */
export function metrics(): string {
  return Engine.exposition(engines(), isMainThread ? `${process.pid}` : `${process.pid}.${threadId}`);
}

function told(): string {
  return Engine.healthJson([...living()].filter(({ isReplaced }) => !isReplaced).map(({ engine }) => engine.health()));
}

/** Whether this thread can serve: the event store, a drain, and what waits for the store. Asks nobody, so it returns at once. */
export function health(): Health {
  const { store, ...others } = JSON.parse(told());
  const { status, away_ms: awayMs, refused_ms: refusedMs, refusing } = store;
  return { ...others, store: { status, awayMs, refusedMs, refusing } };
}

function answer(status: number, contentType: string, body: string, response?: ServerResponse): Response | undefined {
  const headers = { 'content-type': contentType, 'cache-control': 'no-store' };
  if (response === undefined) {
    return new Response(body, { status, headers });
  }
  response.writeHead(status, headers);
  response.end(body);
  return undefined;
}

/**
 * Answers load balancers: status 200 while this thread serves, 503 while requests should go elsewhere, with the health as
 * JSON. A listener of Node's `http`, and of Express; without a response it returns one, for handlers in the manner of `fetch`.
 */
export function readyz(request: unknown, response: ServerResponse): void;
export function readyz(request?: unknown): Response;
export function readyz(_request?: unknown, response?: ServerResponse): Response | undefined {
  const body = told();
  return answer(JSON.parse(body).status === 'unavailable' ? 503 : 200, 'application/json', body, response);
}

/** Answers Prometheus with `metrics()`: a listener, or a handler in the manner of `fetch`, as `readyz` is. */
export function metricsEndpoint(request: unknown, response: ServerResponse): void;
export function metricsEndpoint(request?: unknown): Response;
export function metricsEndpoint(_request?: unknown, response?: ServerResponse): Response | undefined {
  return answer(200, Engine.expositionType(), metrics(), response);
}

/**
 * Answers operators: a page that shows the sessions, calls, connections and tasks of this thread while they run. No payload is on
 * it, but who calls what: put it behind your own authentication. A listener of Node's `http`, and of Express; without a response
 * it returns one, for handlers in the manner of `fetch`.
 */
export function live(request: IncomingMessage, response: ServerResponse): void;
export function live(request: Request): Response;
export function live(request: IncomingMessage | Request, response?: ServerResponse): Response | undefined {
  const { method = 'GET', url = '' } = request;
  const [, query] = url.split('#', 1)[0]?.split(/\?(.*)/s) ?? [];
  const engines = [...living()].map(({ engine }) => engine);
  const { status, headers, body } = Engine.liveAnswer(method, query, engines);
  if (response === undefined) {
    return new Response(body, { status, headers });
  }
  response.writeHead(status, headers);
  response.end(body);
  return undefined;
}
