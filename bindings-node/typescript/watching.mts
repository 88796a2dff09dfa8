// What is counted on this thread, and whether it can serve.
import type { IncomingMessage, ServerResponse } from 'node:http';

import { Engine, type Store as NativeStore } from './native.mjs';
import { countingRuntime, living } from './runtime.mjs';

/** How well something is. What is `degraded` serves; what is `unavailable` refuses. */
export type Condition = 'ok' | 'degraded' | 'unavailable';

/** Whether this thread can serve. */
export interface Health {
  /** The worst of the others. */
  status: Condition;
  /**
   * The event store: for how long it has been away, 0 while it is there, and whether calls are refused, because another
   * process may have the sessions by now.
   */
  store: { status: Condition; awayMs: number; refusing: boolean };
  /** Whether the process is going away. */
  drain: { status: Condition; draining: boolean };
  /** What waits for the event store. */
  waiting: { status: Condition; bytes: number };
}

const HEADERS = { 'content-type': 'application/json', 'cache-control': 'no-store' };
const across = new Map<string, string>();

function acrossOf(name: string): string | undefined {
  if (across.size === 0) {
    const counters = Engine.counters();
    for (let at = 0; at < counters.length; at += 2) {
      across.set(counters[at] ?? '', counters[at + 1] ?? '');
    }
  }
  return across.get(name);
}

/** What Tailrope did and holds on this thread, by name: docs/reference/counters.md. Several engines are put together. */
export function stats(): Record<string, number> {
  const total: Record<string, number> = {};
  const counted = new Set<NativeStore>();
  countingRuntime();
  for (const { store, engine } of living()) {
    const isCounted = store !== undefined && counted.has(store);
    for (const [name, value] of Object.entries(engine.stats())) {
      const before = total[name];
      const how = acrossOf(name);
      if (before === undefined) {
        total[name] = value;
      } else if (how === 'max' || how === 'min') {
        total[name] = Math[how](before, value);
      } else if (!(isCounted && how === 'stores')) {
        total[name] = before + value;
      }
    }
    if (store !== undefined) {
      counted.add(store);
    }
  }
  return total;
}

function told(): string {
  return Engine.healthJson([...living()].filter(({ isReplaced }) => !isReplaced).map(({ engine }) => engine.health()));
}

/** Whether this thread can serve: the event store, a drain, and what waits for the store. Asks nobody, so it returns at once. */
export function health(): Health {
  const { store, ...others } = JSON.parse(told());
  return { ...others, store: { status: store.status, awayMs: store.away_ms, refusing: store.refusing } };
}

/**
 * Answers load balancers: status 200 while this thread serves, 503 while requests should go elsewhere, with the health as
 * JSON. A listener of Node's `http`, and of Express; without a response it returns one, for handlers in the manner of `fetch`.
 */
export function readyz(request: unknown, response: ServerResponse): void;
export function readyz(request?: unknown): Response;
export function readyz(_request?: unknown, response?: ServerResponse): Response | undefined {
  const body = told();
  const status = JSON.parse(body).status === 'unavailable' ? 503 : 200;
  if (response === undefined) {
    return new Response(body, { status, headers: HEADERS });
  }
  response.writeHead(status, HEADERS);
  response.end(body);
  return undefined;
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
