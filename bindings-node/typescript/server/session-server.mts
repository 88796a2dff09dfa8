// One transport's session on the engine, for both SDK lines and both kinds of HTTP exchange.
import { setImmediate } from 'node:timers';

import { ours, TailropeError } from '../errors.mjs';
import { callHost, describe } from '../host.mjs';
import { type Admission, type Adopted, type Body, Engine, type Posted, Refusal, type Session } from '../native.mjs';
import { checkNames } from '../options.mjs';
import type { Runtime } from '../runtime.mjs';
import { runtimeFor } from '../store/event-store.mjs';
import { UserStore } from '../store/user-store.mjs';
import { type Adopt, Adoption } from './adoption.mjs';
import { bodyOf, maxBodyBytes } from './body.mjs';
import type { CloseOptions } from './close.mjs';
import type { AnswerContext, Exchange, SeenRequest } from './exchange.mjs';
import {
  ACTION,
  ANSWERS,
  CANCELS,
  DELETE,
  IS_INITIALIZE,
  LISTEN,
  MESSAGE,
  RESUME,
  REWRITTEN,
  STATUS_BIT,
} from './facts.mjs';
import { serveNamed } from './named-session.mjs';
import { Outcomes } from './outcomes.mjs';
import { Receiver } from './receiver.mjs';
import { fail, guarded, refusalOf, refuse, report, reportFailure } from './refusal.mjs';
import { endpointOf, RelayedRequest } from './relayed.mjs';
import { type Identity, identify } from './requester.mjs';
import {
  isRequest,
  type Message,
  type RequestId,
  type ScopeChallenge,
  type ScopeChallengeResolver,
  type Sdk,
  type SendOptions,
  type Transport,
  type TransportOptions,
} from './sdk.mjs';
import { StoredSessions } from './stored-sessions.mjs';
import { checkMs, forbidden, identityOf, keepAliveOf } from './transport-options.mjs';
import { withResolvers } from './with-resolvers.mjs';

// What the engine answers where the sender has to let the writers of connections run (F-46).
const FLUSH = -1;
const YIELD = -2;

const ENDED_MEANWHILE = 'the session has ended meanwhile';

/** An answer that is to be waited for. */
type Waiting = { done: Promise<void> } | undefined;

/** What is there once the session is. */
interface Opened {
  sessionId: string;
  session: Session;
  answers: AnswerContext;
  outcomes: Outcomes | undefined;
}

/** One transport's session: opened by its first `initialize`. */
export class SessionServer {
  #transport: Transport;
  #receiver: Receiver;
  #sdk: Sdk;
  #options: TransportOptions;
  #makeId: () => string;
  #runtime: Runtime;
  #keepAliveMs: number | undefined;
  #retryMs: number | undefined;
  #maxBodyBytes: number;
  #versions: string[];
  #scopeChallengeResolver: ScopeChallengeResolver | undefined;
  #opened: Opened | undefined;
  #identity: Identity;
  #canBePolled = false;
  #closed = false;
  #closing: Promise<void> | undefined;
  #adopting: Promise<void> | undefined;
  /** The request that the server is given again, until it has answered. */
  #replayed: { id: RequestId; resolve: (answer: Message | undefined) => void } | undefined;
  #requests = 0;
  #writtenAt = 0;
  #writtenTurn: number | undefined;

  /** The transport may get its `onerror` later, and another one. */
  #onerror = (error: Error) => this.#transport.onerror?.(error);

  constructor(transport: Transport, sdk: Sdk, options: TransportOptions, makeId: () => string) {
    this.#transport = transport;
    this.#receiver = new Receiver(transport);
    this.#sdk = sdk;
    this.#options = options;
    this.#makeId = makeId;
    this.#runtime = runtimeFor(options);
    this.#identity = identityOf(this.#runtime, options);
    this.#keepAliveMs = options.keepAliveMs;
    this.#retryMs = checkMs('retryInterval', options.retryInterval);
    this.#maxBodyBytes = maxBodyBytes(options.maxRequestBodySize);
    this.#versions = options.supportedProtocolVersions ?? sdk.versions;
  }

  connected(): void {
    this.#receiver.connected();
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  setVersions(versions: string[]): void {
    this.#versions = versions;
  }

  setScopeChallengeResolver(resolver: ScopeChallengeResolver): void {
    this.#scopeChallengeResolver = resolver;
  }

  /** Answers an exchange. Resolves when the answer is handed over, or the peer is gone; never rejects. */
  async serve(exchange: Exchange): Promise<void> {
    this.#requests += 1;
    await guarded(exchange, this.#sdk.major, this.#onerror, async () => {
      const answer = await this.#admit(exchange);
      // Nothing of the request is held on to while its connection is open, for an hour maybe.
      await answer?.done;
    });
    this.#requests -= 1;
  }

  /** Answers a request that needs no stream; otherwise starts the answer that is to be waited for. */
  async #admit(exchange: Exchange): Promise<Waiting> {
    if (this.#adopting !== undefined) {
      await this.#adopting.catch(() => {
        // Told elsewhere.
      });
    }
    if (this.#closed || this.#opened?.session.hasEnded) {
      const onerror = this.#onerror;
      // Another process may have taken it over: then its readers go on.
      const served = await new StoredSessions(this.#sdk, { ...this.#options, onerror }).serve(exchange);
      return served === 'served' ? undefined : this.#refuse(exchange, 'session_ended');
    }
    const refusal = forbidden(this.#sdk.major, exchange, this.#options);
    if (refusal !== null) {
      return this.#refused(exchange, refusal);
    }
    identify(exchange, this.#identity);
    const { text: body, tooLarge, gone } = await bodyOf(exchange, this.#maxBodyBytes);
    if (gone) {
      exchange.abandon();
      return undefined;
    }
    if (tooLarge) {
      return this.#refuse(exchange, 'body_too_large', String(this.#maxBodyBytes));
    }
    if (this.#closed) {
      return this.#refuse(exchange, 'session_ended');
    }
    const { parsedBody } = exchange;

    const jsonResponse = this.#options.enableJsonResponse === true;
    const opened = this.#opened;
    const admission =
      opened === undefined
        ? this.#runtime.engine.admit(exchange.head(), body, jsonResponse, this.#sdk.major, this.#versions)
        : opened.session.admit(exchange.head(), body, jsonResponse);
    if (admission instanceof Refusal) {
      if (opened === undefined && (await this.#serveNamed(exchange, body))) {
        return undefined;
      }
      return this.#refused(exchange, admission, parsedBody ?? body);
    }
    const { facts } = admission;
    const action = facts & ACTION;
    if (opened !== undefined && (action === LISTEN || action === RESUME)) {
      const connection = opened.session.open(admission, false);
      if (connection instanceof Refusal) {
        return this.#refused(exchange, connection);
      }
      // These may be silent for long: their clients learn at once that they are served.
      return exchange.stream(connection, opened.answers, true);
    }
    if (opened !== undefined && action === DELETE) {
      return this.#delete(opened, () => exchange.whole(facts >> STATUS_BIT, {}));
    }
    const messages = this.#parse(admission, parsedBody ?? body);
    if (messages === undefined) {
      return this.#refused(exchange, refusalOf(this.#sdk.major, 'invalid_message'), parsedBody ?? body);
    }
    if (opened !== undefined && action === MESSAGE) {
      const { session } = opened;
      session.received(admission);
      exchange.whole(facts >> STATUS_BIT, {});
      this.#dispatch(session, admission, messages, exchange, false);
      return undefined;
    }
    const run = () => this.#run(admission, facts, messages, exchange, jsonResponse);
    return facts & IS_INITIALIZE ? this.#begun(messages, exchange, run) : run();
  }

  /** By the revision, which does not change once it is negotiated. */
  #canPoll(session: Session, facts: number): boolean {
    const canPoll = this.#canBePolled || session.canPoll;
    this.#canBePolled = canPoll && !(facts & IS_INITIALIZE);
    return canPoll;
  }

  /** The messages as the SDK has them; nothing when the SDK does not take one of them. */
  #parse(admission: Admission, body: unknown): Message[] | undefined {
    const given = admission.facts & REWRITTEN ? admission.rewritten : body;
    if (given === '') {
      return [];
    }
    try {
      const value: unknown = typeof given === 'string' ? JSON.parse(given) : given;
      return (Array.isArray(value) ? value : [value]).map((message) => this.#sdk.parseMessage(message));
    } catch {
      return undefined;
    }
  }

  /** Opens the session whose first request `run` runs. */
  #begun(messages: Message[], exchange: Exchange, run: () => Promise<Waiting>): Waiting {
    if (!this.#sdk.isInitializeRequest(messages[0])) {
      return this.#refuse(exchange, 'not_initialize');
    }
    const sessionId = this.#open(exchange);
    if (sessionId === undefined) {
      return this.#refuse(exchange, 'too_many_sessions');
    }
    return { done: this.#initialize(sessionId, exchange, run) };
  }

  /** Runs the request that opened the session. Where its client is not told the session's id, nobody will ever name it. */
  async #initialize(sessionId: string, exchange: Exchange, run: () => Promise<Waiting>): Promise<void> {
    let isTold = false;
    try {
      const answer = (await this.#initialized(sessionId, exchange)) ? await run() : undefined;
      await answer?.done;
      isTold = answer !== undefined;
    } finally {
      if (!isTold) {
        await this.#close();
      }
    }
  }

  /** Tells the host of the session. False when it does not take it; then that was the answer. */
  async #initialized(sessionId: string, exchange: Exchange): Promise<boolean> {
    try {
      await this.#options.onsessioninitialized?.(sessionId);
      return true;
    } catch (error) {
      fail(exchange, refusalOf(this.#sdk.major, 'not_opened'), this.#onerror, 'onsessioninitialized failed', error);
      return false;
    }
  }

  async #run(
    admission: Admission,
    facts: number,
    messages: Message[],
    exchange: Exchange,
    jsonResponse: boolean,
  ): Promise<Waiting> {
    if (this.#scopeChallengeResolver !== undefined && (await this.#challenged(messages, exchange))) {
      return undefined;
    }
    const opened = this.#opened;
    if (this.#closed || opened === undefined) {
      return this.#refuse(exchange, 'session_ended');
    }
    const { session, answers } = opened;
    const connection = session.open(admission, jsonResponse);
    if (connection instanceof Refusal) {
      return this.#refused(exchange, connection);
    }
    const answer = exchange.stream(connection, answers, false);
    if (facts & ANSWERS) {
      session.received(admission);
    }
    this.#dispatch(session, admission, messages, exchange, !jsonResponse && this.#canPoll(session, facts));
    return answer;
  }

  /** Serves a request for a session that this transport has not. */
  #serveNamed(exchange: Exchange, body: Body): Promise<boolean> {
    // Where its process is gone, it goes on with the server that the host has connected.
    const adopt: Adopt | undefined = this.#transport.onmessage && ((...named) => void this.#goOn(...named));
    const options = { ...this.#options, onerror: this.#onerror };
    return serveNamed(this.#sdk, this.#runtime, options, exchange, body, adopt);
  }

  async #goOn(sessionId: string, adopted: Adopted, exchange: Exchange): Promise<void> {
    this.#adopting = this.adopt(new Adoption(sessionId, adopted, exchange, () => {}));
    try {
      await this.#adopting;
    } catch (error) {
      // First, as closing would end the session for all processes.
      adopted.refuse('session_not_told', describe(error));
      this.#failed('a session does not go on here', error);
      await this.#close();
    }
  }

  /** Goes on with a session of another process. Rejects where that is not possible; then it is not to be served here. */
  async adopt({ sessionId, adopted, exchange, onReady }: Adoption): Promise<void> {
    const session = adopted.session();
    this.#requests += 1;
    try {
      this.#begin(sessionId, session, exchange);
      for (const text of adopted.replay) {
        await this.#replay(session, this.#sdk.parseMessage(JSON.parse(text)), exchange);
      }
      await onReady();
      if (this.#closed || session.hasEnded) {
        throw new Error(ENDED_MEANWHILE);
      }
      session.acceptPosted();
    } finally {
      this.#requests -= 1;
    }
  }

  /** Gives the server what the client has told before, and waits until it has answered. */
  async #replay(session: Session, message: Message, request: SeenRequest): Promise<void> {
    const replayed = withResolvers<Message | undefined>();
    if (isRequest(message)) {
      this.#replayed = { id: message.id, resolve: replayed.resolve };
    } else {
      replayed.resolve(undefined);
    }
    callHost(() => this.#receiver.give(message, this.#sdk.extra(request)), replayed.reject);
    const answer = await replayed.promise;
    this.#replayed = undefined;
    if (this.#closed || session.hasEnded) {
      // The engine ends a session that was given another revision than its client has.
      throw new Error(ENDED_MEANWHILE);
    }
    // Whether the others succeed is between the server and its client.
    if (answer !== undefined && 'error' in answer && this.#sdk.isInitializeRequest(message)) {
      throw new Error('the server answers `initialize` with an error');
    }
  }

  /** The id of the new session; nothing when there are too many sessions. */
  #open(exchange: Exchange): string | undefined {
    const sessionId = this.#makeId();
    const { engine } = this.#runtime;
    const { major } = this.#sdk;
    let session: Session;
    try {
      session = engine.openSession(
        String(sessionId),
        exchange.server,
        exchange.requester,
        major,
        this.#versions,
        this.#retryMs,
      );
    } catch (thrown) {
      const error = ours(thrown);
      if (error instanceof TailropeError && error.code === 'too_many_sessions') {
        return undefined;
      }
      throw error;
    }
    try {
      this.#begin(sessionId, session, exchange);
    } catch (error) {
      session.end();
      throw error;
    }
    if (this.#runtime.outlivesProcess) {
      session.acceptPosted();
    }
    return sessionId;
  }

  /** From now on the transport has the session. */
  #begin(sessionId: string, session: Session, exchange: Exchange): void {
    if (this.#keepAliveMs !== undefined) {
      session.setKeepAliveMs(keepAliveOf(this.#keepAliveMs));
    }
    const answers: AnswerContext = {
      runtime: this.#runtime,
      sessionId,
      open: new Set(),
      onRefused: (body) => this.#report(new Error(JSON.parse(body).error.message)),
    };
    this.#transport.sessionId = sessionId;
    const { hostStore } = this.#runtime;
    let outcomes: Outcomes | undefined;
    if (hostStore !== undefined) {
      outcomes = new UserStore(this.#runtime, session, hostStore);
    } else if (this.#runtime.outlivesProcess) {
      const endpoint = endpointOf(exchange);
      outcomes = new Outcomes(this.#runtime, session, () => this.#takePosted(endpoint));
    } else if (this.#runtime.answersElsewhere) {
      outcomes = new Outcomes(this.#runtime, session);
    }
    this.#opened = { sessionId, session, answers, outcomes };
    this.#runtime.opened(session.name, this);
  }

  /** Whether a call lacks a scope; then that was the answer. */
  async #challenged(messages: Message[], exchange: Exchange): Promise<boolean> {
    let challenge: ScopeChallenge | undefined;
    try {
      challenge = await this.#challenge(messages, exchange.auth);
    } catch (error) {
      fail(exchange, refusalOf(this.#sdk.major, 'internal'), this.#onerror, 'a resolver of scopes failed', error);
      return true;
    }
    const response = challenge && this.#sdk.scopeChallengeResponse?.(challenge, exchange.auth);
    if (response !== undefined) {
      exchange.whole(response.status, Object.fromEntries(response.headers), await response.text());
    }
    return response !== undefined;
  }

  /** The scopes that one of the requests needs and its sender has not. */
  async #challenge(messages: Message[], authInfo: unknown): Promise<ScopeChallenge | undefined> {
    for (const request of messages.filter(isRequest)) {
      const context = { request, ...(authInfo !== undefined && { authInfo }) };
      const challenge = await this.#scopeChallengeResolver?.(context);
      if (challenge) {
        return challenge;
      }
    }
    return undefined;
  }

  /** Serves what other processes relayed to the session, in the order in which it came. */
  #takePosted(endpoint: string): void {
    for (const posted of this.#opened?.session.takePosted() ?? []) {
      this.#requests += 1;
      this.#serveRelayed(posted, endpoint)
        .catch((error) => {
          this.#failed('a relayed request failed', error);
          posted.refuse('internal');
        })
        .finally(() => {
          this.#requests -= 1;
        });
    }
  }

  async #serveRelayed(posted: Posted, endpoint: string): Promise<void> {
    const opened = this.#opened;
    if (this.#closed || opened === undefined) {
      return posted.refuse('session_ended');
    }
    const { session } = opened;
    const jsonResponse = this.#options.enableJsonResponse === true;
    const admission = posted.admit(session, jsonResponse);
    if (admission === null) {
      return undefined;
    }
    const { facts } = admission;
    const action = facts & ACTION;
    if (action === DELETE) {
      // Its client is answered once the session is gone.
      return this.#delete(opened);
    }
    const messages = this.#parse(admission, posted.body);
    if (messages === undefined) {
      const refusal = refusalOf(this.#sdk.major, 'invalid_message');
      this.#report(this.#sdk.bodyError?.(refusal, posted.body) ?? new Error(refusal.message));
      return posted.refuse('invalid_message');
    }
    const request = new RelayedRequest(posted, String(opened.sessionId), endpoint);
    if (action === MESSAGE) {
      session.received(admission);
      this.#dispatch(session, admission, messages, request, false);
      return posted.done();
    }
    if (this.#scopeChallengeResolver !== undefined && (await this.#challenge(messages, request.auth)) !== undefined) {
      throw new Error('A relayed request lacks scopes: it cannot be answered with a challenge');
    }
    if (posted.begin(admission)) {
      if (facts & ANSWERS) {
        session.received(admission);
      }
      this.#dispatch(session, admission, messages, request, !jsonResponse && this.#canPoll(session, facts));
    }
  }

  #dispatch(session: Session, admission: Admission, messages: Message[], request: SeenRequest, canPoll: boolean): void {
    for (const message of messages) {
      const failed = (error: unknown) => {
        this.#failed('a message was not taken', error);
        if (isRequest(message)) {
          session.cancelled(message.id);
        }
      };
      callHost(() => {
        const extra = this.#sdk.extra(request);
        if (canPoll && isRequest(message)) {
          extra.closeSSEStream = (options) => this.#transport.closeSSEStream(message.id, options);
          extra.closeStandaloneSSEStream = (options) => this.#transport.closeStandaloneSSEStream(options);
        }
        return this.#receiver.give(message, extra);
      }, failed);
    }
    if (admission.facts & CANCELS) {
      session.dispatched(admission);
    }
  }

  async #delete({ session, sessionId }: Opened, answer?: () => void): Promise<undefined> {
    try {
      await this.#options.onsessionclosed?.(sessionId);
      answer?.();
    } finally {
      // Closing alone leaves it to other processes.
      session.delete();
      await this.#close();
    }
  }

  /** Stores one message on the stream that it belongs to, before anything of it is sent. */
  async send(message: Message, options?: SendOptions): Promise<void> {
    const related = options?.relatedRequestId;
    const { id } = message;
    const isResponse = message.method === undefined;
    if (isResponse && id === undefined) {
      throw new Error('Cannot send a response on a standalone SSE stream unless resuming a previous client request');
    }
    const opened = this.#opened;
    if (opened === undefined || this.#closed) {
      if (!isResponse && related === undefined) {
        // Nobody listens yet, or any more.
        return;
      }
      throw new Error(`No connection established for request ID: ${String(isResponse ? id : related)}`);
    }
    const replayed = this.#replayed;
    if (isResponse && replayed?.id === id) {
      replayed?.resolve(message);
    }
    const { session, outcomes } = opened;
    let number: number | null;
    try {
      if (id === undefined) {
        const payload = JSON.stringify(message);
        number = session.notify(related, payload, this.#sinceMs(), this.#hasPaused());
      } else if (isResponse) {
        number = session.respond(id, responseText(message, id));
      } else {
        const payload = JSON.stringify(message);
        number = session.ask(id, related, payload, this.#sinceMs(), this.#hasPaused());
      }
    } catch (error) {
      throw ours(error);
    }
    if (number === FLUSH) {
      this.#runtime.flush();
      this.#noteWriting();
    } else if (number === YIELD) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      this.#noteWriting();
    } else if (number !== null && outcomes !== undefined) {
      const stored = outcomes.outcome(number);
      // The engine answers the client for a response that was not stored.
      await (isResponse ? stored.catch(() => {}) : stored);
    }
  }

  #sinceMs(): number {
    return performance.now() - this.#writtenAt;
  }

  /** Whether the event loop has turned, and written, since the last time. */
  #hasPaused(): boolean {
    return this.#runtime.turn !== this.#writtenTurn;
  }

  #noteWriting(): void {
    this.#writtenAt = performance.now();
    this.#writtenTurn = this.#runtime.turn;
  }

  closeConnection(requestId: RequestId, options?: CloseOptions): boolean {
    return this.#opened?.session.closeConnection(requestId, ...pausesOf(options)) ?? false;
  }

  closeStandalone(options?: CloseOptions): boolean {
    return this.#opened?.session.closeStandalone(...pausesOf(options)) ?? false;
  }

  becomeIdle(): void {
    // A request that is still read, or is with the user's functions, is not known to the engine. It does not keep a session
    // that has ended.
    if (this.#requests === 0 || this.#opened?.session.hasEnded) {
      void this.#close();
    }
  }

  #close(): Promise<void> {
    this.#closing ??= this.#closeTransport();
    return this.#closing;
  }

  /** Ends the session, and closes the transport, which may be a subclass of the host's and calls its `onclose`. */
  async #closeTransport(): Promise<void> {
    this.#opened?.session.end();
    try {
      await this.#transport.close();
    } catch (error) {
      this.#failed('a session did not close', error);
    }
    // Also where the host's `close` did not come to it.
    this.close();
  }

  close(): void {
    if (this.#closed) {
      return;
    }
    this.#closed = true;
    this.#replayed?.resolve(undefined);
    // The program may close it because the process ends: what outlives that keeps the session.
    this.#opened?.session.release();
    for (const answer of [...(this.#opened?.answers.open ?? [])]) {
      answer.finish();
    }
    this.#opened?.outcomes?.close();
    if (this.#opened !== undefined) {
      this.#runtime.closed(this.#opened.session.name);
    }
  }

  /** Users' functions may throw anything: `onerror` gets it as it is, as from the SDKs. */
  #report(error: unknown): void {
    report(this.#onerror, error);
  }

  #failed(what: string, error: unknown): void {
    reportFailure(this.#onerror, what, error);
  }

  #refused(exchange: Exchange, refusal: Refusal, requestBody?: unknown): undefined {
    refuse(exchange, refusal, this.#onerror, this.#sdk.bodyError?.(refusal, requestBody));
  }

  #refuse(exchange: Exchange, fault: string, text?: string): undefined {
    return this.#refused(exchange, refusalOf(this.#sdk.major, fault, text));
  }
}

function pausesOf(options: CloseOptions = {}) {
  checkNames(options, ['retryMs', 'holdMs'], 'a close');
  return [checkMs('retryMs', options.retryMs), checkMs('holdMs', options.holdMs)] as const;
}

/** A response as JSON. One that cannot be written is replaced by an error, or its request would never end. */
function responseText(message: Message, id: RequestId): string {
  try {
    return JSON.stringify(message);
  } catch {
    return Engine.unwritable(id);
  }
}
