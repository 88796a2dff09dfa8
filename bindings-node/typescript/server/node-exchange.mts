// One HTTP exchange of node:http: what is read from an IncomingMessage and written to a ServerResponse.
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';

import { describe } from '../host.mjs';
import type { Body, Connection, Head, Requester } from '../native.mjs';
import { writeLogOnce } from '../runtime.mjs';
import { Answer, EVENT_STREAM } from './answer.mjs';
import { bodyOfChunks, bytesOf, encoded, handBody, type ReadBody, readRequest } from './body.mjs';
import type {
  AnswerContext,
  Exchange,
  FetchOptions,
  Handlers,
  OpenAnswer,
  RequestInfo,
  Sink,
  SinkListener,
} from './exchange.mjs';
import { headOf } from './head.mjs';
import { serverNameOf } from './server-name.mjs';
import { hostOf, requestInfoOf, requestWhenRead, type WebHead, webHead } from './web-request.mjs';

/**
 * A request with what is left in it in front of the endpoint: by authentication of the SDK's kind or of passport's, by express, and
 * the bytes of its body by hosts that have read it, such as Google's functions.
 */
export type Incoming = IncomingMessage & { auth?: unknown; user?: unknown; originalUrl?: unknown; rawBody?: unknown };

export class NodeExchange implements Exchange {
  readonly face = 'node';
  #req: Incoming;
  /** Its body. */
  #stream: Incoming;
  #res: ServerResponse;
  /** What the body is read from, where others have made another request. */
  #made: Request | undefined;
  /** Some of the body is left on the connection. */
  #isUnread = false;
  parsedBody: unknown;
  text: Body | undefined;
  requester: Requester | undefined;
  server = '';

  constructor(req: Incoming, res: ServerResponse, parsedBody?: unknown) {
    this.#req = req;
    this.#stream = req;
    this.#res = res;
    this.parsedBody = parsedBody;
  }

  checkUnanswered(): void {
    checkUnanswered(this.#res);
  }

  get method(): string {
    return this.#req.method ?? '';
  }

  get auth(): unknown {
    return this.#req.auth;
  }

  get user(): unknown {
    const { auth } = this.#req;
    return auth === undefined || auth === null || auth === false ? this.#req.user : auth;
  }

  get request(): IncomingMessage {
    return this.#req;
  }

  get host(): string | undefined {
    return hostOf(this.#req);
  }

  get endpoint(): string {
    // Express takes the path at which something is mounted away from the URL, and keeps it here.
    const { url = '/' } = this.#req;
    const originalUrl = originalUrlOf(this.#req);
    return typeof originalUrl === 'string' ? serverNameOf(originalUrl, url) : serverNameOf(url);
  }

  header(name: string): string | undefined {
    const value = this.#req.headers[name];
    return Array.isArray(value) ? value.join() : value;
  }

  headersOf(asked: (name: string) => boolean): string[] {
    const found: string[] = [];
    // Requests have few headers, and there are many names.
    for (const name of Object.keys(this.#req.headers)) {
      const value = asked(name) ? this.header(name) : undefined;
      if (value !== undefined) {
        found.push(name, value);
      }
    }
    return found;
  }

  head(): Head {
    const { headers } = this.#req;
    const { accept, 'content-type': contentType, 'mcp-protocol-version': protocolVersion } = headers;
    const { 'mcp-session-id': sessionId, 'last-event-id': lastEventId } = headers;
    return headOf(this.method, accept, contentType, protocolVersion, sessionId, lastEventId);
  }

  readBody(maxBytes: number): ReadBody | Promise<ReadBody> {
    if (this.#made !== undefined) {
      return readRequest(this.#made, maxBytes);
    }
    const req = this.#stream;
    if (Number(req.headers['content-length']) > maxBytes) {
      return this.#refuseRest();
    }
    if (req.rawBody instanceof Uint8Array) {
      return this.#taken(req.rawBody, maxBytes);
    }
    if (req.readableEnded) {
      return { text: '' };
    }
    if (req.destroyed) {
      // The peer left before anybody listened: there is no event left that would say so. What came whole is here. Of HTTP/2's
      // requests `complete` does not say that.
      const isWhole = req.complete && req.httpVersionMajor === 1 && !req.readableDidRead;
      return isWhole ? this.#taken(bytesOf(req.read() ?? '', req.readableEncoding), maxBytes) : { gone: true };
    }
    return new Promise((resolve, reject) => {
      let chunks: Uint8Array[] | undefined = [];
      let size = 0;
      // What comes behind it finds nobody. So that costs nothing, the listeners stay.
      const settle = (result: ReadBody) => {
        chunks = undefined;
        resolve(result);
      };
      req.on('data', (chunk: Uint8Array | string) => {
        if (chunks === undefined) {
          return;
        }
        const bytes = bytesOf(chunk, req.readableEncoding);
        size += bytes.length;
        if (size > maxBytes) {
          req.pause();
          settle(this.#refuseRest());
        } else {
          chunks.push(bytes);
        }
      });
      req.on('end', () => {
        try {
          if (chunks !== undefined) {
            settle({ text: bodyOfChunks(chunks) });
          }
        } catch (error) {
          reject(error);
        }
      });
      const gone = () => settle({ gone: true });
      req.on('close', gone);
      req.on('error', gone);
      // What waits for its user pauses requests.
      req.resume();
    });
  }

  #taken(bytes: Uint8Array, maxBytes: number): ReadBody {
    return bytes.length > maxBytes ? { tooLarge: true } : { text: bodyOfChunks([bytes]) };
  }

  #refuseRest(): ReadBody {
    this.#isUnread = true;
    return { tooLarge: true };
  }

  whole(status: number, headers: OutgoingHttpHeaders, body = ''): void {
    try {
      const closes = this.#isUnread && this.#req.httpVersionMajor < 2;
      writeWhole(this.#res, status, { ...headers, ...(closes && { connection: 'close' }) }, body);
    } catch (error) {
      if (!(error instanceof Answered)) {
        breakOff(this.#res, error);
      }
    }
  }

  stream(connection: Connection, context: AnswerContext): OpenAnswer {
    const answer = new Answer(connection, context, this.sink());
    answer.start();
    return answer;
  }

  sink(): Sink {
    return new NodeSink(this.#res);
  }

  /** The same exchange, as it comes out of what others have put around a transport of node:http. */
  handedOnBy(req: Incoming, res: ServerResponse, parsedBody: unknown): void {
    this.#req = req;
    this.#stream = req;
    this.#res = res;
    handBody(this, parsedBody);
  }

  handedOn(request: Request, options?: FetchOptions | null, passed = request): void {
    const { authInfo, parsedBody } = options ?? {};
    const incoming = incomingOf(passed);
    if (incoming !== undefined) {
      this.#req = incoming;
      this.#stream = incoming;
    }
    const req = this.#req;
    handBody(this, parsedBody);
    if (request !== passed) {
      const { method, url, headers } = request;
      const { pathname, search } = new URL(url);
      this.#made = request;
      this.#req = changed(req, {
        method,
        url: pathname + search,
        headers: Object.fromEntries(headers),
        auth: authInfo,
      });
    } else if (authInfo !== req.auth) {
      this.#req = changed(req, { auth: authInfo });
    }
  }

  handTo({ node }: Handlers): Promise<void> {
    return node(this.#req, this.#res, this.parsedBody);
  }

  /** What tells the SDKs' adapters that it is answered: a header, which has to be that of a `Response` with a head of its own. */
  sent(): Response {
    const { statusCode } = this.#res;
    const status = statusCode >= 200 && statusCode <= 599 ? statusCode : 200;
    const response = new Response(null, { status, headers: { 'x-hono-already-sent': 'true' } });
    // Where hono has put its own class in the place of `Response`, it is a real one from now on.
    void response.body;
    return response;
  }

  /** Nobody is left to get an answer. */
  abandon(): void {}

  webHead(): WebHead {
    return webHead(this.#req);
  }

  webRequest(): Request {
    return requestWhenRead(this.method, this.webHead());
  }

  requestInfo(): RequestInfo {
    return requestInfoOf(this.#req);
  }
}

function originalUrlOf(req: Incoming): unknown {
  try {
    return req.originalUrl;
  } catch {
    return undefined;
  }
}

/** What hono, in the SDKs' transports, has made a request of. */
function incomingOf(request: Request): Incoming | undefined {
  const key = Object.getOwnPropertySymbols(request).find(({ description }) => description === 'incomingKey');
  return key && Reflect.get(request, key);
}

/** A request in which some members are others. */
function changed(req: Incoming, members: Partial<Incoming>): Incoming {
  return new Proxy(req, {
    get: (req, name) => Reflect.get(Object.hasOwn(members, name) ? members : req, name),
  });
}

class NodeSink implements Sink {
  #res: ServerResponse;
  #forget: (() => void) | undefined;
  #isBegun = false;

  constructor(res: ServerResponse) {
    this.#res = res;
  }

  open(listener: SinkListener): boolean {
    const res = this.#res;
    checkUnanswered(res);
    const lost = () => listener.lost();
    const drained = () => listener.writable();
    res.on('close', lost);
    // `error` stays: a late one has to find a listener.
    res.on('error', lost);
    res.on('drain', drained);
    this.#forget = () => {
      res.off('close', lost);
      res.off('drain', drained);
    };
    return !(res.destroyed || res.socket?.destroyed);
  }

  head(status: number, headers: Record<string, string>): void {
    this.#res.writeHead(status, headers);
  }

  write(data: string | Uint8Array): boolean {
    try {
      return this.#write(encoded(data));
    } catch (error) {
      breakOff(this.#res, error);
      throw error;
    }
  }

  #write(bytes: Uint8Array): boolean {
    const res: Partial<ServerResponse> & Pick<ServerResponse, 'write'> = this.#res;
    // Some say nothing of their readers.
    if (res.socket) {
      return res.write(bytes) !== false;
    }
    // What has no socket may write later, where nothing could catch that its peer is gone: now. Some want their head alone for that.
    if (!this.#isBegun) {
      this.#isBegun = true;
      res.flushHeaders?.();
    }
    res.cork?.();
    try {
      return res.write(bytes) !== false;
    } finally {
      res.uncork?.();
    }
  }

  end(data?: string | Uint8Array): void {
    end(this.#res, data);
  }

  whole(status: number, headers: Record<string, string>, data: string | Uint8Array = ''): void {
    writeWhole(this.#res, status, headers, data);
  }

  fail(): void {
    destroy(this.#res);
  }

  release(): void {
    try {
      this.#forget?.();
    } catch {
      // What still listens hears of an answer that is over.
    }
  }

  /** Nobody is left to get anything. */
  drop(): void {}
}

class Answered extends Error {}

/** Somebody else may have answered meanwhile. */
function checkUnanswered(res: ServerResponse): void {
  if (res.headersSent) {
    throw new Answered('The request has been answered by something else');
  }
}

function destroy(res: ServerResponse): void {
  try {
    res.destroy();
  } catch {
    // There is no more that could be done.
  }
}

/** A response threw, of itself or by what the host has put around it: its client must not wait for the rest. */
function breakOff(res: ServerResponse, error: unknown): void {
  writeLogOnce('warn', `an answer was broken off, because its response failed: ${describe(error)}`);
  destroy(res);
}

/** Ends a response. It is given bytes, as by the SDKs: what hosts put around it collects these. */
function end(res: ServerResponse, data: string | Uint8Array = ''): void {
  try {
    if (data.length === 0) {
      res.end();
    } else {
      res.end(encoded(data));
    }
  } catch (error) {
    breakOff(res, error);
  }
}

/** An answer that is known as a whole leaves in one write. An event stream has no length: middleware may change it. */
function writeWhole(
  res: ServerResponse,
  status: number,
  headers: OutgoingHttpHeaders,
  body: string | Uint8Array,
): void {
  checkUnanswered(res);
  if (res.destroyed) {
    return;
  }
  if (status !== 204 && headers['content-type'] !== EVENT_STREAM) {
    headers['content-length'] = Buffer.byteLength(body);
  }
  res.writeHead(status, headers);
  end(res, body);
}
