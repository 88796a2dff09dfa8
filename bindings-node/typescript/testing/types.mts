// What a test has in its hands.

// biome-ignore lint/suspicious/noExplicitAny: what a server says, which tests look into.
type Json = any;

/** One event. */
export interface Event {
  readonly id: string | undefined;
  /** The JSON-RPC message; undefined for a priming event. */
  readonly message: Json;
  /** Its short form, see `Call.received`. */
  readonly value: Json;
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

/** A tool's call, over as many connections as the test makes of it. See docs/testing/kit.md. */
export interface Call {
  readonly session: Session;
  readonly tool: string;
  readonly requestId: number;
  /** What each connection carried, in the order in which they began. */
  readonly connections: Connection[];
  /** The event ids so far, in the order in which they came, each once. */
  readonly ids: string[];
  /** The JSON-RPC messages, as a client has them that followed the connections so far. */
  readonly messages: Json[];
  /**
   * The same in the short form: a progress notification's number, a log message's data, a result's text, an error's
   * `{ code, message }`, a method, or a result that is no text as it is.
   */
  readonly received: Json[];
  /** Whether the response has come. */
  readonly isAnswered: boolean;
  /**
   * Reads `count` (1) more messages from the connection and gives them in the short form.
   *
   * @throws TailropeError `ended_early` when it ends before, and `timed_out`.
   */
  read(count?: number): Promise<Json[]>;
  /** Reads `after` (0) more messages and cuts the connection, as a dying network path would: with a reset. */
  cut(after?: number): Promise<void>;
  /**
   * Reads until the connection is over, and gives its messages in the short form. `connections.at(-1).end` says whether
   * the server `closed` it in the proper way, or it was `broken`.
   */
  untilClosed(): Promise<Json[]>;
  /**
   * Comes back for what follows the event with the id `after`, by default the last one that came. A connection that is
   * open is cut first. `at` is the URL of another server on the same store.
   *
   * @throws TailropeError `no_cursor` when there is no id, `refused` for an answer that is no stream.
   */
  resume(after?: string, options?: { at?: string | URL }): Promise<void>;
  /**
   * Reads to the response, coming back as often as the server closes or the connection breaks, after the pause that it
   * asks for; then reads the stream again from its first id, as a client would that kept nothing. Gives all messages in
   * the short form.
   *
   * `readAgain: false` leaves the second reading out; `assertExactlyOnce()` then needs to be told what was sent.
   */
  collect(options?: { readAgain?: boolean }): Promise<Json[]>;
  /**
   * Reads the stream from its first id to its response, on a connection of its own, as far as the server still has it.
   * What it says besides what came before shows in `assertExactlyOnce()`.
   */
  readAgain(): Promise<Json[]>;
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
   * @throws TailropeError `refused` when the answer is neither a stream nor JSON.
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
   * @throws TailropeError `not_restartable` for a server in this process.
   */
  kill(): Promise<void>;
  /**
   * Starts a process that was killed again, on the same port.
   *
   * @throws TailropeError `not_restartable`, `not_started`.
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
  /** How long the server may take until it listens, in milliseconds. Default 60,000. */
  startMs?: number;
  /** Nothing in a test is waited for longer, in milliseconds. Default 20,000. */
  waitMs?: number;
}
