// What the native half has: the classes of ../src. The loader is native.cts; tests/node/native.test.mjs compares the names.

/** A JSON-RPC id; `1` and `"1"` are two ids. */
export type RequestId = number | string;
/** A body: text, or bytes. */
export type Body = string | Uint8Array;
/** Up to 16 KiB a string, and then a Buffer. */
export type Frames = string | Buffer;
/** What may be left out: native functions take null, too. */
type Maybe<T> = T | null | undefined;

/** What is known of the sender of a request. Of `credentials`, each name is followed by its value. */
export interface Requester {
  named?: string | undefined;
  logUser?: string | undefined;
  userJson?: string | undefined;
  credentials: string[];
}

/**
 * The parts of a request's head that count, a line for each: method, `accept`, `content-type`, `mcp-protocol-version`,
 * `mcp-session-id`, `last-event-id`. A NUL for what is absent.
 */
export type Head = string;

/**
 * What a connection's writer has to do. First how the answer starts: the HTTP status, and 65,536 for an event stream, 131,072
 * for JSON, 262,144 where it has the session id header, 524,288 where it refuses; from the 21st bit on the seconds of
 * `Retry-After`, where it has that; 0 while the store has not said. Then in how many milliseconds the engine has to be ticked
 * at the latest, if the writer waits; -1 if it polls again behind the data; -2 if the connection ends behind the data. Then
 * the data, where there is some.
 */
export type Polled = [head: number, wait: number, data?: Frames];

/**
 * What travels of a request beside its body. Of `headers`, each name is followed by its value; which of them travel the core
 * says, and `more` names others. `authJson` is what the SDK knows of the sender: credentials are removed from it. `dropped`
 * names what of it is no JSON.
 */
export interface Travelling {
  method: string;
  headers: string[];
  more: string[];
  authJson?: string | undefined;
  dropped: string[];
}

/** Something that is over: see the core's `Observation`. */
export interface Observed {
  session?: string;
  request?: string;
  parent?: string;
  name?: string;
  instrument?: string;
  durationMs?: number;
  error?: string;
  attributes: Record<string, string | number>;
  dimensions: Record<string, string | number>;
}

/** What the span of a call is to say that begins. */
export interface CallSpan {
  session: string;
  request: string;
  name: string;
  attributes: Record<string, string | number>;
}

/** What becomes of a POST. */
export interface Routed {
  route: 'pass' | 'steer' | 'discover' | 'call' | 'task' | 'listen' | 'undeclared';
  /** The tool that it calls. */
  tool?: string;
  /** Whether it declares that its client takes tasks. */
  takesTasks: boolean;
}

/** What the server's answer to `server/discover` says of tasks. */
export interface Announced {
  /** The server makes tasks itself. Absent where its answer cannot say so. */
  byHost?: boolean;
  /** The answer with the extension, where that was added. */
  body?: string;
}

/**
 * What travelled of a request that came to another process: its headers, each name in lower case and followed by its value,
 * and what the SDK knew of its sender.
 */
export interface Travelled {
  headers: string[];
  authJson?: string;
}

/** What the host has to do for a call. */
export interface TaskStep {
  /** `body`, `begin`, `write` and `end` give the client something. Those of the core have its names. */
  kind:
    | 'body'
    | 'begin'
    | 'write'
    | 'end'
    | 'passOn'
    | 'unlink'
    | 'disconnect'
    | 'kill'
    | 'start'
    | 'answer'
    | 'refuse';
  /** The HTTP status of a `body`. */
  status?: number;
  /** What is written, the call of a `start`, or the result of an `answer`. */
  data?: Frames;
  run?: number;
  ask?: number;
  /**
   * The context of a `start`: the request about the task with this key, or one that came to another process. Without both it
   * is that of the call.
   */
  request?: number;
  travelled?: Travelled;
  /** All headers of the message of a `start`: each name is followed by its value. */
  headers?: string[];
}

/** The late outcome of a message. */
export interface Outcome {
  number: number;
  /** Why it was not stored; absent when it was. */
  code?: string;
  message?: string;
}

/**
 * What the host's own store has to do. With a stream: store the payload, or the priming position when there is none.
 * Otherwise: replay after the id.
 */
export interface HostOperation {
  number: number;
  stream?: string;
  payload?: string;
  lastEventId?: string;
}

/** A position of an event in the host's own store: its id, and its message unless it is a priming. */
export interface Replayed {
  id?: string | undefined;
  payload?: string | undefined;
}

/** The outcome of an operation of a `HookLog`. */
export interface HookOutcome {
  number: number;
  /** Why it failed; absent when it did not. */
  code?: string;
  message?: string;
  /** The id of what was stored. */
  eventId?: string;
  /** The stream that was replayed; absent when the id means nothing. */
  stream?: string;
  /** What came after the id. */
  events?: { id: string; payload: string }[];
}

/** What a POST's body means for streams. */
export interface ClientPosted {
  /** The ids of its requests, as a JSON array; absent where it has none. */
  requests?: string;
  /** The ids of requests that it cancels, each as JSON text; absent where it has none. */
  cancelled?: string[];
}

/** One thing to be done. */
export interface ClientStep {
  kind: 'connect' | 'opened' | 'gap' | 'cursorLost' | 'disconnect' | 'finished' | 'failed';
  /** Of `connect`, where there is one. */
  lastEventId?: string;
  /** Of `gap`. */
  first?: number;
  /** Of `gap`. */
  count?: number;
  /** Of `failed`: the failure's kind, and its text. */
  code?: string;
  message?: string;
}

/** What an input asks for. */
export interface ClientSteps {
  /** Events for the client, without ids. */
  frames?: Frames;
  /** The same as JSON texts, where these are wanted. Events of types of their own are not among them. */
  messages?: string[];
  /** The rest, in order, after what is delivered. */
  steps: ClientStep[];
}

/** A request that may enter its session. */
export declare class Admission {
  private constructor();
  /**
   * What the request does: its action in the lowest three bits (1 listen, 2 resume, 3 delete, 4 message: notifications and
   * answers only, 5 call), 8 when it opens a session, 16 when it cancels requests, 32 when it answers requests of the server,
   * 64 when the handlers are given something else in the place of the body. From the ninth bit on the status of the answer to
   * a message or a deletion, which is empty.
   */
  get facts(): number;
  /**
   * What the handlers are given in the place of the body, where that differs: a session that was adopted knows its server's
   * requests by other ids than its client. Empty where there is nothing for the handlers.
   */
  get rewritten(): string | null;
}

/** The answer to a request that may not. */
export declare class Refusal {
  private constructor();
  get status(): number;
  /** The body, as `application/json`. */
  get body(): string;
  get allow(): string | null;
  get message(): string;
  /** The value of `Retry-After`, where the answer has it. */
  get retryAfterS(): number | null;
}

/** The look-up of a session in the store. */
export declare class LookUp {
  private constructor();
  /** What the waiters know it as. */
  get key(): number;
  /** The answer when the store cannot tell. */
  get refusal(): Refusal;
  /**
   * The `Session`; false when it is not known, or somebody else's; null while the store has not told. Throws when it
   * could not.
   */
  take(): Session | false | null;
}

/** A connection of a stream. Its writer polls it, writes what it gets, and waits for its key. */
export declare class Connection {
  private constructor();
  /** What the waiters know it as. */
  get key(): number;
  /** What to write next, at most about `maxBytes`. What the call before gave counts as flushed. */
  poll(maxBytes: number): Polled;
  /** The peer is gone. */
  lost(): void;
}

/** An open session. */
export declare class Session {
  private constructor();
  /** What the waiters know the session as. */
  get key(): number;
  /** What stores, the log and `Engine.tick` know the session as. */
  get name(): string;
  /** Whether connections of this session may be closed early and polled. */
  get canPoll(): boolean;
  /** Requests without a response. */
  get inFlight(): number;
  /** Whether the session has ended. */
  get hasEnded(): boolean;
  /** Whether another process has the session: here it serves readers, and relays what else comes for it. */
  get isElsewhere(): boolean;
  /** Gives the session's streams another longest silence than the engine's, in milliseconds; 0 is any. */
  setKeepAliveMs(keepAliveMs: number): void;
  /**
   * Examines an HTTP request: an `Admission`, or the `Refusal` to answer with. `server` is the one that it is for, if the host
   * knows.
   */
  admit(
    head: Head,
    server: Maybe<string>,
    requester: Maybe<Requester>,
    body: Body,
    jsonResponse: boolean,
  ): Admission | Refusal;
  /**
   * Examines an HTTP request, and opens the connection that it asks for. An `Admission` where the host has something to do
   * first: for what asks for no connection, for a call that is more than requests, and for a call that `opensCall` does not
   * open, which is asked when the call is admitted.
   */
  enter(
    head: Head,
    server: Maybe<string>,
    requester: Maybe<Requester>,
    body: Body,
    jsonResponse: boolean,
    opensCall: () => boolean,
  ): Connection | Admission | Refusal;
  /** Opens the connection that an admitted request asks for. */
  open(admission: Admission, jsonResponse: boolean): Connection | Refusal;
  /**
   * Relays an admitted POST or DELETE to the process that has the session: the `Connection` is the answer, or a `Refusal`.
   * With `jsonResponse` a call is answered with JSON.
   */
  relay(admission: Admission, body: Body, travelling: Travelling, jsonResponse: boolean): Connection | Refusal;
  /**
   * Adopts the session here, should a request be relayed to it when its owner is gone. The last offer for a session counts.
   * What this wakes is told by the next call, when the host waits for the offer.
   */
  offerAdoption(): Offer;
  /** From now on `takePosted` is called whenever the session's key is woken. */
  acceptPosted(): void;
  /** What other processes relayed to the session, in the order in which it came. */
  takePosted(): Posted[];
  /** The SDK has been given the messages of the request: what these cancel gets its end. */
  dispatched(admission: Admission): void;
  /** Notes what the client sent that is not a request. */
  received(admission: Admission): void;
  /**
   * Sends a notification. `related` is the request that it belongs to; without one it goes to the standalone stream.
   * `sinceMs` is how long the event loop has not turned, as far as the sender knows.
   *
   * Returns nothing when it is stored, and -1 where the sender then lets the event loop turn; otherwise the number of its
   * late outcome.
   */
  notify(related: Maybe<RequestId>, payloadJson: string, sinceMs: number): number | null;
  /** Sends a response. Never throws for the store: the engine answers for a response that was not stored. */
  respond(id: RequestId, payloadJson: string): number | null;
  /** Sends a request to the client. Otherwise as `notify`. */
  ask(id: RequestId, related: Maybe<RequestId>, payloadJson: string, sinceMs: number): number | null;
  /** Late outcomes. */
  takeOutcomes(): Outcome[];
  /** What the host's own store has to do. */
  takeOperations(): HostOperation[];
  /** The host's own store stored the event and gave it this id. */
  stored(number: number, eventId: string): void;
  /** The host's own store did not store the event. `what` is for the server's log. */
  notStored(number: number, what: string): void;
  /** What the host's own store replayed. */
  replayed(number: number, stream: Maybe<string>, events: Replayed[]): void;
  /** The host's own store did not replay. `what` is for the server's log. */
  notReplayed(number: number, what: string): void;
  /** Closes the connection of a request's stream. Returns whether the request can be polled. */
  closeConnection(request: RequestId, retryMs?: Maybe<number>, holdMs?: Maybe<number>): boolean;
  /** Closes the connection of the standalone stream, likewise. */
  closeStandalone(retryMs?: Maybe<number>, holdMs?: Maybe<number>): boolean;
  /** The request will get no response: it gets its end now. False when it has one. */
  cancelled(request: RequestId): boolean;
  /** What the span of a request in flight is to say; nothing where nobody observes. */
  callSpan(request: RequestId): CallSpan | null;
  /** The span of a request in flight has this place in its trace. */
  traceCall(request: RequestId, trace: string): void;
  /** Lets go of a session that lives elsewhere, unless somebody reads it here or relays to it. */
  letGo(): void;
  /** The client ends its session: as `end`, but in a drain, too, it goes on nowhere. */
  delete(): void;
  /** The host stops serving the session: as `end`, but what a store that outlives the process has of it stays there. */
  release(): void;
  /** Ends the session: requests in flight get an error, connections close, logs are freed. */
  end(): void;
}

/**
 * A request that another process relayed to a session of this one. Its host settles it: by a refused `admit` or `begin`, by
 * `begin` of a call, `done` of messages without an answer, `refuse`, or the end of the session.
 */
export declare class Posted {
  private constructor();
  /** The body as text: `admit` refuses bytes that are none. */
  get body(): string;
  /** The headers that travelled, each name in lower case and followed by its value. */
  get headers(): string[];
  /** What the other process's SDK knows of the sender. */
  get authJson(): string | null;
  /** Examines the request: an `Admission`, or null when it is refused. */
  admit(session: Session, jsonResponse: boolean): Admission | null;
  /** Puts the requests of a call in flight. False when it is refused, and not to be dispatched. */
  begin(admission: Admission): boolean;
  /** The handlers have been given messages without an answer. */
  done(): void;
  /** The host does not take the request: see the core's `Fault`. */
  refuse(fault: string): void;
}

/** The host adopts a session of another process, should that be gone. Holds nothing of the session. */
export declare class Offer {
  private constructor();
  /** What the waiters know it as. It is woken when `take` has something, or `isOver` has changed. */
  get key(): number;
  /** Whether it counts no more: the session is not looked at here any longer, or there is a later offer. */
  get isOver(): boolean;
  /** The session, once, where it is this process's from now on; null where it is not. */
  take(): Adopted | null;
}

/**
 * A session that is this process's. Its host builds the server, gives that the `replay`, and then accepts what waits; or it
 * refuses.
 */
export declare class Adopted {
  private constructor();
  /** The session, as one that was opened here. */
  session(): Session;
  /** The messages that the server is given first, in this order. Their answers go nowhere. */
  get replay(): string[];
  /**
   * The host cannot go on with the session: it is released, and what waits is answered with the core's `Fault`. `why` is for
   * the server's log.
   */
  refuse(fault: string, why: string): void;
}

/** A call that the SDK is given once, or several times, and that may become a task. */
export declare class TaskCall {
  private constructor();
  /** What the waiters know it as. It is woken when there are steps to do, and when it is over. */
  get key(): number;
  /** What the SDK is given at first. */
  get body(): string;
  /** What the span of the call is to say; nothing where nobody observes. */
  span(): CallSpan | null;
  /** The SDK's answer to a run, where all of it is there at once. */
  answered(run: number, status: number, contentType: Maybe<string>, body: Body): void;
  /** The SDK's answer to a run begins. */
  begin(run: number, status: number, contentType?: Maybe<string>): void;
  /** The next bytes of it. */
  data(run: number, chunk: Uint8Array): void;
  /** Nothing more comes of a run. */
  ended(run: number): void;
  /** The handler asks its client: a JSON-RPC request. */
  question(ask: number, requestJson: string): void;
  /** The handler does not wait for the answer any more. */
  withdrawn(ask: number): void;
  /** The client of the call closed its connection. */
  clientGone(): void;
  /**
   * What is to be done now, in order. To be asked again until there is nothing. First in how many milliseconds the engine has to
   * be ticked at the latest; -1 if nothing is left to do. Then the steps.
   */
  takeSteps(): [wait: number, ...steps: TaskStep[]];
  /** The host serves it no more. */
  leave(): void;
}

/** A request about a task that is in order. */
export declare class TaskRequest {
  private constructor();
  /** Whether it may have to go to another process. */
  get mayTravel(): boolean;
  /** The answer where nobody can tell whose request it is: as for a task that is not there. */
  unknown(): Refusal;
}

/** A request about a task. */
export declare class TaskQuery {
  private constructor();
  /** What the waiters know it as, also the call that is to be served because of it. */
  get key(): number;
  /**
   * The next answer: the body, or a `Refusal`; or a `TaskCall` that the host serves from now on, and the answer follows. Null
   * where there is none yet.
   */
  take(): string | Refusal | TaskCall | null;
}

/** A `subscriptions/listen` that names tasks, and that the SDK is given. */
export declare class TaskSubscription {
  private constructor();
  /** What the waiters know it as. It is woken when there may be more. */
  get key(): number;
  /** The SDK's answer begins. False where it is for the client as it is. */
  begin(contentType?: Maybe<string>): boolean;
  /** Whether the next bytes of the SDK's stream are wanted now. */
  get takes(): boolean;
  /** The next bytes of the SDK's stream. */
  push(chunk: Uint8Array): void;
  /** The SDK's stream is over. */
  end(): void;
  /** The next bytes for the client. Null until something happens; to be asked again until then. */
  next(): string | Uint8Array | null;
  /** Whether nothing follows. */
  get isOver(): boolean;
  /** The host stops. */
  drain(): void;
  /** The client has left. */
  leave(): void;
}

/** A log by the names that an SDK gives its streams. */
export declare class HookLog {
  private constructor();
  /** What the waiters know it as: woken when some operations have their outcome. */
  get key(): number;
  /**
   * Stores a message of a stream: `kind` is 0 for a notification, 2 for a request, 3 for a response. Empty text is a
   * priming: a position without a message. Returns the operation's number.
   */
  store(scope: string, stream: string, kind: number, payloadJson: string): number;
  /** Asks for what a scope has after an id. Returns the operation's number. */
  replay(scope: string, lastEventId: string): number;
  /** Forgets what a scope has. */
  dropScope(scope: string): void;
  /** The outcomes since the last time. */
  takeOutcomes(): HookOutcome[];
}

/** What an option of a store may be. */
export type StoreValue = number | string | string[];

/** An open event store. Several engines may use it. */
export declare class Store {
  /**
   * Opens the store at an address, at once: one over the network is refused, for this thread would wait for it. Options are
   * the bounds and `ownerLostMs`, whole numbers that are not negative, `durability` and `encryptionKeys`; unknown names
   * throw.
   */
  constructor(address: string, options: Record<string, StoreValue>);
  /** As the constructor, on a thread of its own: every address is taken. */
  static open(address: string, options: Record<string, StoreValue>): Promise<Store>;
  /** The address without what is secret in it. */
  get address(): string;
}

/** What an engine knows of its health. */
export interface HealthParts {
  storeAwayMs?: number;
  isRefusing: boolean;
  isDraining: boolean;
  waitingBytes: number;
  isBehind: boolean;
}

/** An answer about the engines of the thread. */
export interface LiveAnswer {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** An engine with its event store. */
export declare class Engine {
  /**
   * An engine with these options; what is not named keeps its default. Options are whole numbers that are not negative,
   * `onStoreFailure`, and `pace`; unknown names throw.
   *
   * The events go to `store`, whose bounds are its own; without one to a store of the host: see `Session.takeOperations`.
   * `resolve` is called with woken keys, `log` with a level, a line and its fields, and `signal` when `flush` has to be called.
   */
  constructor(
    store: Maybe<Store>,
    options: Record<string, number | string | boolean | Record<string, Record<string, number | boolean>>>,
    resolve: (keys: number[]) => void,
    log: (
      level: 'error' | 'warn' | 'info' | 'debug',
      line: string,
      fields: Record<string, string | number | boolean>,
    ) => void,
    signal: () => void,
  );
  /**
   * The engines of this process are observed from now on, and `observer` is told on this thread. Gives the bounds of the
   * histograms, in seconds.
   */
  static observe(observer: (observed: Observed) => void): number[];
  /** The version of this package. */
  static version(): string;
  /** The answer to a request that the host does not take. With a `body` it names its request. */
  static refusal(sdkMajor: number, fault: string, text?: Maybe<string>, body?: Maybe<Body>): Refusal;
  /** The answer to a request from a host or an origin that is not among the allowed ones; null where it is served. */
  static forbidden(
    sdkMajor: number,
    allowedHosts: string[],
    allowedOrigins: string[],
    host: Maybe<string>,
    origin: Maybe<string>,
  ): Refusal | null;
  /** The error that stands for a response that is no JSON. */
  static unwritable(request: RequestId): string;
  /** The names of the options that are numbers: those of a store, or the others. */
  static numberOptions(ofStore: boolean): string[];
  /** The names of what a pace can say. */
  static paceOptions(): string[];
  /** The headers that say who sends a request. */
  static identityHeaders(): string[];
  /**
   * Whether a member of this name counts of what authentication left of a user: it names or places the user, or has such
   * members in it.
   */
  static isUserMember(name: string): boolean;
  /** Whether what authentication left names a user. */
  static namesUser(userJson: string): boolean;
  /** The name of the server that a request is for, by its target, and the target by which it was routed. */
  static serverName(target: string, routed?: Maybe<string>): string;
  /** Sets what is logged on this thread: `error`, `warn`, `info` or `debug`, and what is worse. */
  static setLogLevel(level: string): void;
  /** Whether messages may be stored later: see `Session.takeOutcomes`. */
  answersElsewhere(): boolean;
  /** Whether sessions may live in other processes: see `lookUpSession`. */
  outlivesProcess(): boolean;
  /** Tells what other threads have woken. */
  flush(): void;
  /**
   * Examines a request to a transport that has no session yet: an `Admission` of the `initialize` that opens it, or the
   * `Refusal` to answer with.
   */
  admit(
    head: Head,
    requester: Maybe<Requester>,
    body: Body,
    jsonResponse: boolean,
    sdkMajor: number,
    versions: string[],
  ): Admission | Refusal;
  /**
   * Opens a session of this server, which belongs to the requester. `sdkMajor` is the SDK line whose answers are given, `versions` are the
   * values of the version header that are served. `retryMs` is the session's own, where the host has one. For the new one
   * another session of the requester may have to end, which `tick` then tells; throws when none is idle.
   */
  openSession(
    id: string,
    server: string,
    requester: Maybe<Requester>,
    sdkMajor: number,
    versions: string[],
    retryMs?: Maybe<number>,
  ): Session;
  /**
   * Looks up a session of this server that lives in another process, or lived in one, for its requester, and the stream that a GET is to
   * go on with. The key of the `LookUp` is woken when it can be taken. Null where nobody can tell whose request it is.
   */
  lookUpSession(
    id: string,
    head: Head,
    server: string,
    requester: Maybe<Requester>,
    sdkMajor: number,
    versions: string[],
  ): LookUp | null;
  /** The refusal of a request that names a session that there is not: it is counted, and has a line in the log. */
  unknownSession(id: string, head: Head, server: string, requester: Maybe<Requester>, sdkMajor: number): Refusal;
  /** The answer to a POST of a revision without resumption, of which `body` was read. */
  steer(body: Body, requested: string): Refusal;
  /** Notes that such a request is left to the SDK. */
  noteUnresumable(requested: string): void;
  /**
   * What becomes of a POST with this version header. `steers` says whether clients are steered, `standsAside` whether the
   * server makes tasks itself. Null for what is no message of a revision that is known.
   */
  routePost(version: Maybe<string>, body: Body, steers: boolean, standsAside: boolean): Routed | null;
  /**
   * Takes a call that the SDK is given now, and that may become a task. Null where it cannot: it is no request, or nobody can
   * tell whose it is. Of `headers`, each name is followed by its value: only those count whose names begin with
   * `paramHeaders`.
   */
  openCall(
    server: string,
    requester: Maybe<Requester>,
    body: Body,
    tool: Maybe<string>,
    takesStreams: boolean,
    headers: string[],
  ): TaskCall | null;
  /**
   * Reads a request about a task: a `TaskRequest`, or the `Refusal` to answer with. `mcpMethod` and `mcpName` are the headers
   * of these names.
   */
  static readTaskRequest(
    head: Head,
    mcpMethod: Maybe<string>,
    mcpName: Maybe<string>,
    body: Body,
    jsonResponse: boolean,
  ): TaskRequest | Refusal;
  /**
   * Asks about a task of this server. What may travel of the request is given as to `Session.relay`. Null where
   * nobody can tell whose request it is.
   */
  askTask(
    request: TaskRequest,
    server: string,
    requester: Maybe<Requester>,
    body: Body,
    travelling: Maybe<Travelling>,
  ): TaskQuery | null;
  /**
   * Takes a `subscriptions/listen` that names tasks of this server, and that the SDK is given now: a `TaskSubscription`, or the
   * `Refusal` to answer with. Null where nobody can tell whose it is.
   */
  subscribeToTasks(server: string, requester: Maybe<Requester>, body: Body): TaskSubscription | Refusal | null;
  /** What the name of a header begins with, in lower case, that repeats an argument of a call. */
  static paramHeaders(): string;
  /** Whether a header belongs to a message, and not to the request that brings it. */
  static isOfMessage(name: string): boolean;
  /** Has the server's answer to `server/discover`, of this content type, announce tasks, unless the server does. */
  static announce(contentType: Maybe<string>, answer: Uint8Array): Announced;
  /** The answer to a request that has to declare that its client takes tasks. */
  static missingCapability(body: Body): Refusal;
  /** A log for an SDK's own transport, in the engine's store. */
  hookLog(): HookLog;
  /**
   * Does what time asks for. Returns the names of the sessions that are idle, for the host to close them, and of those that
   * have ended by themselves: for newer ones, or because another process took them over. Null where there is no such session,
   * and nothing is held that time would have to free: then there is nothing to tick for.
   */
  tick(): string[] | null;
  /** Milliseconds until `tick` is due. */
  dueInMs(): number;
  /** Closes every connection, now and from now on, and leaves sessions to other processes as nothing runs in them. */
  drain(retryMs?: Maybe<number>, spreadMs?: Maybe<number>): void;
  /** Whether a drain left nothing, once it is over. */
  drained(withinMs?: Maybe<number>): boolean | null;
  /**
   * The process ends, and every session with it; nothing is taken afterwards. What a store that outlives the process has of
   * them stays there for their clients, and what it was given is written.
   */
  leave(): void;
  /** What these engines did and hold: counts by name. */
  static statsOf(engines: Engine[]): Record<string, number>;
  /** The same for Prometheus. `process` is how it tells this thread from other threads and processes. */
  static exposition(engines: Engine[], process: string): string;
  /** The content type of that. */
  static expositionType(): string;
  /** After what time, in milliseconds, a reader that takes nothing is cut off. */
  patienceMs(): number | null;
  /** Whether the engine can serve. */
  health(): HealthParts;
  /** What a load balancer is told, as JSON, of these engines. */
  static healthJson(engines: HealthParts[]): string;
  /** The answer to a request for the live page of these engines. */
  static liveAnswer(method: string, query: string | undefined, engines: Engine[]): LiveAnswer;
  /** A request is answered with this refusal: it is counted, once. */
  refused(refusal: Refusal): void;
  /** The options in force, by name. */
  options(): Record<string, number | 'auto'>;
}

/** Where a front listens, and what is behind it. */
export interface FrontOptions {
  /** An IP address. */
  address: string;
  port: number;
  reusePort: boolean;
  /** The path of a Unix socket, or `host:port`. */
  app: string;
}

/** How the front serves a session. Where a request differs from that, it is passed on. */
export interface FrontTerms {
  /** The path at which the session is served. */
  path: string;
  jsonResponse: boolean;
  /** Values of `Host` and `Origin`; `:*` at the end of one stands for any port. Absent where any value is served. */
  allowedHosts?: string[];
  allowedOrigins?: string[];
  maxBodyBytes: number;
}

/**
 * Listens on a port, on threads of its own. It serves the sessions that were handed over to it, as far as that needs no
 * JavaScript; everything else it passes on to the server behind it.
 */
export declare class Front {
  /** Listens. Throws with the system's code where that is not possible. */
  constructor(engine: Engine, options: FrontOptions);
  /** Where it listens. */
  get port(): number;
  /** What the waiters know it as: it is woken when `take` has something. */
  get key(): number;
  /** From now on the front serves the requests of a session, until that ends. */
  serve(session: Session, terms: FrontTerms): void;
  /** What came for the host, in order; and the names of sessions that are to be closed, as from `Engine.tick`. */
  take(): (Arrival | string)[];
  /** Takes no further connections. Answers that are under way go on. */
  stop(): void;
  /** Stops, waits so long for answers, and cuts what is left. Resolves once its threads have ended. */
  close(withinMs: number): Promise<void>;
}

/**
 * A POST that the front has read, and that its session admits. Its host settles it: by `begin` of a call, by `done` of messages
 * without an answer, or by `decline`.
 */
export declare class Arrival {
  private constructor();
  /**
   * The name of its session, the facts of its admission, and its body as the handlers are to take it: a line for each of the
   * first two, and the rest. One text, because each property costs more than what it says.
   */
  get text(): string;
  get admission(): Admission;
  /** The URL; then each header's name, in lower case, and its value: a line for each. */
  get head(): string;
  /** Opens the answer to a call. False where that is refused, behind the front, and it is not to be dispatched. */
  begin(): boolean;
  /** The handlers have been given messages without an answer. */
  done(): void;
  /** The host does not take it: it is served behind the front. */
  decline(): void;
}

/** How streams come back. */
export declare class ClientOptions {
  /** What is not named keeps its default; `null` is "never" or "any number" where there is such a thing. */
  constructor(options: Record<string, number | null>);
}

/** One request about a task, and how often it was sent in vain. */
export declare class ClientRepeats {
  private constructor();
  /** Of a POST; null where it is not to be sent again. */
  static of(protocolVersion: Maybe<string>, body: Body, options: ClientOptions): ClientRepeats | null;
  /** How long to wait before it is sent again, in milliseconds; null where this outcome counts. */
  after(now: number, jitter: number, status?: Maybe<number>, retryAfterMs?: Maybe<number>): number | null;
}

/** One stream. Times are whole milliseconds on a monotonic clock, `jitter` is 32 random bits. */
export declare class ClientStream {
  private constructor();
  /** Whether the answer to a request with this head may be a stream. */
  static takesRequest(method: string, accept?: Maybe<string>, protocolVersion?: Maybe<string>): boolean;
  /** Whether the answer to a POST with requests is the beginning of a stream. */
  static takesAnswer(status: number, contentType?: Maybe<string>): boolean;
  /** What the body of a POST means for streams. */
  static classify(body: Body): ClientPosted;
  /** What a refused POST means: a `failed` step. */
  static refused(status: number): ClientStep;
  /** A POST with these requests, a JSON array of ids, was answered with an event stream. */
  static posted(requests: string, options: ClientOptions, wantsMessages: boolean, now: number): ClientStream;
  /** A GET without a cursor. */
  static standalone(options: ClientOptions, wantsMessages: boolean, now: number): ClientStream;
  /** A GET with somebody else's cursor. */
  static continued(cursor: string, options: ClientOptions, wantsMessages: boolean, now: number): ClientStream;
  /** What a token tells of. */
  static saved(token: string, options: ClientOptions, wantsMessages: boolean, now: number): ClientStream;
  /** When to `tick`; infinite for never. */
  get deadline(): number;
  /** The last event id; empty when there is none. */
  get cursor(): string;
  /** The reconnection time that the stream told. */
  get retryMs(): number | null;
  /** Tries in a row that brought nothing. */
  get attempts(): number;
  /** Requests without an answer, as a JSON array of ids. */
  get requests(): string;
  /** Whether nothing will come of it any more. */
  get isDone(): boolean;
  /** The session that the token names. */
  get sessionId(): string | null;
  /** The revision that the token names. */
  get protocolVersion(): string | null;
  /** What is to be done first. */
  start(): ClientSteps | null;
  /** The head of the answer to a `connect`. */
  head(
    now: number,
    jitter: number,
    status: number,
    contentType?: Maybe<string>,
    retryAfterMs?: Maybe<number>,
  ): ClientSteps | null;
  /** Bytes of the body. */
  bytes(now: number, jitter: number, bytes: Uint8Array): ClientSteps | null;
  /** The body ended in good order. */
  end(now: number, jitter: number): ClientSteps | null;
  /** The connection broke, or could not be made. */
  broken(now: number, jitter: number): ClientSteps | null;
  /** Nobody waits for this request any more; its id is JSON text. */
  cancelled(now: number, jitter: number, request: string): ClientSteps | null;
  /** Nobody waits for the stream any more. */
  abort(now: number, jitter: number): ClientSteps | null;
  /** The host cannot go on: it ends the stream as one that nothing comes of any more. */
  abandon(now: number, jitter: number): ClientSteps | null;
  /** Time has passed. */
  tick(now: number, jitter: number): ClientSteps | null;
  /** What it takes to continue the stream elsewhere; null while it has no cursor, or is done. */
  token(sessionId?: Maybe<string>, protocolVersion?: Maybe<string>): string | null;
  /** The error response of each request that has no other, once the stream has failed. */
  failureFrames(): Frames | null;
}

/** The codes of the errors that this package throws. */
export declare function errorCodes(): string[];

/**
 * Runs the command `tailrope` with the words behind its name, prints what it has to say, and gives its exit status. The
 * thread that calls does nothing else meanwhile.
 */
export declare function command(words: string[]): number;

/** What the core reads a body as, as JSON. Only in builds for tests. */
export declare function inspectBody(sdkMajor: number, body: Body): string;
