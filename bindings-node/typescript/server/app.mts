// The user's own application behind the front: it answers all paths that are not the endpoint's.
import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';

import { invalid } from '../errors.mjs';
import { traceOf } from '../host.mjs';
import { writeLog } from '../runtime.mjs';
import { hostOf } from './web-request.mjs';

/** Answers requests of the web platform, as Hono and frameworks like it do. */
export interface FetchApp {
  fetch(request: Request): Response | Promise<Response>;
}

/** A listener of node:http, as express apps are; what has a `fetch`; or an http.Server that does not listen, with its upgrades. */
export type App = RequestListener | FetchApp | Server;

const METHODS_WITHOUT_BODY = ['GET', 'HEAD'];

/** Has `app` answer what `server` passes on by the listener that this gives. */
export function listenerOf(app: App | undefined, server: Server): RequestListener {
  if (app === undefined) {
    return notFound;
  }
  if (typeof app === 'function') {
    return app;
  }
  if ('emit' in app && typeof app.emit === 'function') {
    if (app.listenerCount('upgrade') > 0) {
      server.on('upgrade', (...upgrade) => app.emit('upgrade', ...upgrade));
    }
    return (req, res) => void (app.emit('request', req, res) || notFound(req, res));
  }
  if ('fetch' in app && typeof app.fetch === 'function') {
    return fetching(app);
  }
  return invalid('app must be a request listener, an object with a function `fetch`, or an http.Server');
}

export function notFound(_: IncomingMessage, res: ServerResponse): void {
  res.writeHead(404, { 'content-length': 0 }).end();
}

function fetching(app: FetchApp): RequestListener {
  return (req, res) => {
    const gone = new AbortController();
    res.once('close', () => gone.abort());
    answer(app, req, res, gone.signal).catch((error) => {
      if (gone.signal.aborted) {
        return;
      }
      if (res.headersSent) {
        res.destroy();
      } else {
        res.writeHead(500, { 'content-length': 0 }).end();
      }
      writeLog('error', `the app failed: ${traceOf(error)}`);
    });
  };
}

async function answer(app: FetchApp, req: IncomingMessage, res: ServerResponse, signal: AbortSignal): Promise<void> {
  await sendResponse(await app.fetch(requestOf(req, signal)), res);
}

function requestOf(req: IncomingMessage, signal: AbortSignal): Request {
  const { method = 'GET', rawHeaders } = req;
  const headers = new Headers();
  for (let at = 0; at < rawHeaders.length; at += 2) {
    headers.append(rawHeaders[at], rawHeaders[at + 1]);
  }
  const url = new URL(req.url ?? '/', `http://${hostOf(req) ?? 'localhost'}`);
  const init: RequestInit = { method, headers, signal };
  if (!METHODS_WITHOUT_BODY.includes(method)) {
    Object.assign(init, { body: Readable.toWeb(req), duplex: 'half' });
  }
  return new Request(url, init);
}

/** Sends a `Response` of the web platform as it comes. */
export async function sendResponse(response: Response, res: ServerResponse): Promise<void> {
  const headers: Record<string, string | string[]> = Object.fromEntries(response.headers);
  const cookies = response.headers.getSetCookie();
  if (cookies.length > 0) {
    headers['set-cookie'] = cookies;
  }
  res.writeHead(response.status, headers);
  if (response.body === null) {
    res.end();
    return;
  }
  res.flushHeaders();
  await pipeline(Readable.fromWeb(response.body as Parameters<typeof Readable.fromWeb>[0]), res);
}
