// One HTTP exchange of either kind, as sessions, routers and handlers see it.
import type { IncomingMessage, ServerResponse } from 'node:http';

import type { Body, Connection, Head, Requester } from '../native.mjs';
import type { Runtime } from '../runtime.mjs';
import type { ReadBody } from './body.mjs';
import type { WebHead } from './web-request.mjs';

/** The kind of an exchange: of node:http, or of the web platform. */
export type Face = 'node' | 'fetch';

/** `extra.requestInfo` of the 1.x SDK. */
export interface RequestInfo {
  headers: Record<string, string | string[] | undefined>;
  url: URL;
}

/** What the web platform's handlers are told beside the request. */
export interface FetchOptions {
  authInfo?: unknown;
  parsedBody?: unknown;
}

/** Who may answer an exchange in our place, for each kind of exchange. */
export interface Handlers {
  fetch(request: Request, options: FetchOptions): Promise<Response>;
  node(req: IncomingMessage, res: ServerResponse, parsedBody: unknown): Promise<void>;
}

/** Who is told what becomes of the peer of an answer. */
export interface SinkListener {
  /** The reader takes more. */
  writable(): void;
  /** The peer is gone. */
  lost(): void;
}

/** Where an answer goes that is written piece by piece. */
export interface Sink {
  /** Looks whether the peer is still there, and tells from now on what becomes of it. */
  open(listener: SinkListener): boolean;
  /** Writes the head of an answer that goes on, which leaves with its first bytes. */
  head(status: number, headers: Record<string, string>): void;
  /** False while the reader is behind; then it is told when that is over. */
  write(data: string | Uint8Array): boolean;
  end(data?: string | Uint8Array): void;
  /** Writes an answer that is known as a whole. */
  whole(status: number, headers: Record<string, string>, data?: string | Uint8Array): void;
  /** Breaks the answer off. */
  fail(error: unknown): void;
  /** Ends what `open` began. */
  release(): void;
  /** The peer is gone: nothing more comes. */
  drop(): void;
}

/** An answer that is under way. */
export interface OpenAnswer {
  /** Resolves when everything is handed over, or the peer is gone. */
  readonly done: Promise<void>;
  /** The session is over: what is left goes now, whether the reader asks for it or not. */
  finish(): void;
}

/** What the answers of one session share. */
export interface AnswerContext {
  runtime: Runtime;
  /** For the answers that name it; none where they do not. */
  sessionId: string | undefined;
  /** Those that are under way. */
  open: Set<OpenAnswer>;
  /** Gets the body of what the engine refused after all. */
  onRefused(body: string): void;
  /** The session lives elsewhere. */
  isGuest?: boolean;
}

/** What handlers see of a request. */
export interface SeenRequest {
  /** What authentication in front of the endpoint left, as the SDK has it. */
  readonly auth: unknown;
  /** `ctx.http.req` of the 2.x SDK. */
  webRequest(): Request;
  /** `extra.requestInfo` of the 1.x SDK. */
  requestInfo(): RequestInfo;
}

export interface Exchange extends SeenRequest {
  readonly face: Face;
  readonly method: string;
  readonly request: IncomingMessage | Request;
  /** What authentication in front of the endpoint left of the user: of the SDK's kind, or of passport's. */
  readonly user: unknown;
  readonly host: string | undefined;
  /** The server that it is for, if no option names it. */
  readonly endpoint: string;
  /** What was made of the body in front of the transport, and its text where that is at hand. */
  parsedBody: unknown;
  text: Body | undefined;
  /** What is known of its sender. */
  requester: Requester | undefined;
  /** The server that it is for. */
  server: string;

  /** Throws where something else has answered it. */
  checkUnanswered(): void;
  header(name: string): string | undefined;
  /** The headers whose names, in lower case, are asked for: each name is followed by its value. */
  headersOf(asked: (name: string) => boolean): string[];
  /** The head as the web platform has it. */
  webHead(): WebHead;
  /** The parts of the head that the engine looks at. */
  head(): Head;
  readBody(maxBytes: number): ReadBody | Promise<ReadBody>;
  /** Answers with what is known as a whole, unless there is an answer. */
  whole(status: number, headers: Record<string, string>, body?: string): void;
  /** Answers with what a connection of the engine carries. */
  stream(connection: Connection, context: AnswerContext): OpenAnswer;
  /** For an answer of another kind. */
  sink(): Sink;
  /**
   * Takes what comes out of what others have put around a transport: it may tell handlers something else, or hand on another
   * request than the one that went in, which is `passed` where that is known.
   */
  handedOn(request: Request, options?: FetchOptions | null, passed?: Request): void;
  /** Leaves the answer to a handler. */
  handTo(handlers: Handlers): Promise<void>;
  /** The exchange is over without an answer. */
  abandon(): void;
}
