import { AssertionError } from 'node:assert';
import type { IncomingMessage, Server as HttpServer, ServerResponse } from 'node:http';

/** A step of the test that could not be done. */
export class KitError extends Error {
  /**
   * Stable, and the same in every language:
   *
   * - `not_started`: the server did not come to listen, or has ended.
   * - `not_restartable`: only a server in a process of its own can be killed and started again.
   * - `no_connection`: the server did not take the connection, or broke it before it answered.
   * - `refused`: it answered something else than was asked for; `status` is the HTTP status.
   * - `timed_out`: nothing came for `waitMs`.
   * - `no_cursor`: no event has had an id yet, so there is nothing to resume after.
   * - `closed`: the connection is over, and had less than was waited for.
   */
  readonly code: 'not_started' | 'not_restartable' | 'no_connection' | 'refused' | 'timed_out' | 'no_cursor' | 'closed';
  readonly status?: number;
}

/** A call's messages did not come exactly once. The lists hold messages in their short form. */
export class NotExactlyOnce extends AssertionError {
  readonly lost: unknown[];
  readonly repeated: unknown[];
  readonly outOfOrder: unknown[];
  readonly foreign: unknown[];
}

/** One event. */
export interface Event {
  readonly id: string | undefined;
  /** The JSON-RPC message; undefined for a priming event. */
  readonly message: any;
  /** Its short form, see `Call.received`. */
  readonly value: any;
  readonly retryMs: number | undefined;
  readonly isResponse: boolean;
}

/** What one connection of a call carried. */
export interface Connection {
  readonly number: number;
  readonly method: 'POST' | 'GET';
  /** The id that a resume named. */
  readonly after: string | undefined;
  readonly status: number;
  /** Whether it read the stream again from its start, beside the call's own way. */
  readonly readsAgain: boolean;
  readonly events: Event[];
  /** The events that carry a message. */
  readonly messages: Event[];
  /** Losses that the server announced. */
  readonly gaps: string[];
  /** `cut` by the test, `closed` by the server in the proper way, or `broken`. */
  readonly end: 'open' | 'cut' | 'closed' | 'broken';
}

/** A tool's call, over as many connections as the test makes of it. See docs/testing.md. */
export interface Call {
  readonly session: Session;
  readonly tool: string;
  readonly requestId: number;
  /** What each connection carried, in the order in which they began. */
  readonly connections: Connection[];
  /** The event ids so far, in the order in which they came, each once. */
  readonly ids: string[];
  /** The JSON-RPC messages, as a client has them that followed the connections so far. */
  readonly messages: any[];
  /**
   * The same in the short form: a progress notification's number, a log message's data, a result's text, an error's
   * `{ code, message }`, a method, or a result that is no text as it is.
   */
  readonly received: any[];
  /** Whether the response has come. */
  readonly isAnswered: boolean;
  /**
   * Reads `count` (1) more messages from the connection and gives them in the short form.
   *
   * @throws KitError `closed` when it ends before, and `timed_out`.
   */
  read(count?: number): Promise<any[]>;
  /** Reads `after` (0) more messages and cuts the connection, as a dying network path would: with a reset. */
  cut(after?: number): Promise<void>;
  /**
   * Reads until the connection is over, and gives its messages in the short form. `connections.at(-1).end` says whether
   * the server `closed` it in the proper way, or it was `broken`.
   */
  untilClosed(): Promise<any[]>;
  /**
   * Comes back for what follows the event with the id `after`, by default the last one that came. A connection that is
   * open is cut first. `at` is the URL of another server on the same store.
   *
   * @throws KitError `no_cursor` when there is no id, `refused` for an answer that is no stream.
   */
  resume(after?: string, options?: { at?: string | URL }): Promise<void>;
  /**
   * Reads to the response, coming back as often as the server closes or the connection breaks, after the pause that it
   * asks for; then reads the stream again from its first id, as a client would that kept nothing. Gives all messages in
   * the short form.
   *
   * `readAgain: false` leaves the second reading out; `assertExactlyOnce()` then needs to be told what was sent.
   */
  collect(options?: { readAgain?: boolean }): Promise<any[]>;
  /**
   * Reads the stream from its first id to its response, on a connection of its own, as far as the server still has it.
   * What it says besides what came before shows in `assertExactlyOnce()`.
   */
  readAgain(): Promise<any[]>;
  /**
   * Every message came once, in order, on every way through the connections, and then one response.
   *
   * `expected` is what the tool sent, in the short form. Without it that is what the server has when the stream is read
   * again, which cannot show what it never kept; so name it where you know it.
   *
   * @throws NotExactlyOnce
   */
  assertExactlyOnce(expected?: readonly unknown[]): void;
  /** A line for each connection: how it began, what it carried, how it ended. */
  report(): string;
}

/** A session of a server, opened with `initialize`. */
export interface Session {
  readonly url: string;
  /** Undefined for a server that has no sessions. */
  readonly id: string | undefined;
  readonly revision: string;
  /**
   * Calls a tool, with a progress token. Resolves with the head of the answer; nothing of it has been read.
   *
   * @throws KitError `refused` when the answer is neither a stream nor JSON.
   */
  call(tool: string, args?: object): Promise<Call>;
  /** Posts any other message, such as the answer to a question of the server; gives the HTTP status. */
  send(message: object): Promise<number>;
  /** Cuts what is open. The session itself goes on at the server. */
  close(): void;
  /** Ends the session at the server; gives the HTTP status. */
  delete(): Promise<number>;
}

export interface SessionOptions {
  /** Default `2025-11-25`. */
  revision?: string;
  /** What the client says it can do. Default: nothing. */
  capabilities?: object;
  /** Go with every request. */
  headers?: Record<string, string>;
}

/**
 * Opens a session at a server that runs already: `url` is that of its MCP endpoint. Nothing is waited for longer than
 * `waitMs` (20,000).
 *
 * @throws KitError
 */
export function openSession(url: string | URL, options?: SessionOptions & { waitMs?: number }): Promise<Session>;

/** A server that runs. */
export interface Server {
  /** Stays the same over restarts. */
  readonly port: number;
  /** That of the MCP endpoint. */
  readonly url: string;
  /** What the process wrote to its standard output and error so far; empty for a server in this process. */
  readonly log: string;
  /** Opens a session. It is closed with the server. */
  session(options?: SessionOptions): Promise<Session>;
  /**
   * Ends the process at once (SIGKILL), with all that it started.
   *
   * @throws KitError `not_restartable` for a server in this process.
   */
  kill(): Promise<void>;
  /**
   * Starts a process that was killed again, on the same port.
   *
   * @throws KitError `not_restartable`, `not_started`.
   */
  start(): Promise<void>;
  /**
   * `kill()` and `start()`: what a crash and a supervisor make of it. Sessions go on with `resume()`, where the server
   * has a store that outlives its process.
   */
  restart(): Promise<void>;
  /** Cuts what is open and stops the server. */
  close(): Promise<void>;
}

export interface ServeOptions {
  /** Where the MCP endpoint is. Default `/mcp`. */
  path?: string;
  /** Go with every request of the test. */
  headers?: Record<string, string>;
  /** Of the process, over those of this one. */
  env?: Record<string, string>;
  cwd?: string;
  /** How long the server may take until it listens, in milliseconds. Default 20,000. */
  startMs?: number;
  /** Nothing in a test is waited for longer, in milliseconds. Default 20,000. */
  waitMs?: number;
}

type Handler = (req: IncomingMessage, res: ServerResponse) => unknown;

/**
 * Starts a server on a free port of 127.0.0.1. `target` is one of
 *
 * - a handler of node:http, such as an express application, or an `http.Server` that does not listen yet: served in this
 *   process;
 * - the path of a file that this Node runs, or a command as a list: a process of its own, which has to listen on the port
 *   that `PORT` in its environment names, and `{port}` in the command.
 *
 * @throws KitError `not_started`, with what the process wrote; TypeError for what cannot be served.
 */
export function serve(target: string | readonly string[] | Handler | HttpServer, options?: ServeOptions): Promise<Server>;
