// One transport's session on the engine, for both SDK lines and both kinds of HTTP exchange.
import { describe } from '../host.mjs';
import { Admission, type Adopted, type Arrival, type Body, type Posted, Refusal, type Session } from '../native.mjs';
import type { Runtime } from '../runtime.mjs';
import { runtimeFor } from '../store/event-store.mjs';
import { type Adopt, Adoption } from './adoption.mjs';
import { bodyOf, maxBodyBytes, type ReadBody } from './body.mjs';
import type { CloseOptions } from './close.mjs';
import type { Exchange } from './exchange.mjs';
import { ACTION, CALL, DELETE, IS_INITIALIZE, MESSAGE, STATUS_BIT } from './facts.mjs';
import { frontDoor } from './front-door.mjs';
import { messagesOf, parsed } from './messages.mjs';
import { serveNamed } from './named-session.mjs';
import { OpenSession, opened } from './open-session.mjs';
import { sendUnopened } from './outbox.mjs';
import { Receiver } from './receiver.mjs';
import { fail, failed, refusalOf, refuse, report, reportFailure } from './refusal.mjs';
import { arrivedRequest, endpointOf, relayedRequest } from './relayed.mjs';
import { checkGoesOn, Replay } from './replay.mjs';
import { type Identity, identify } from './requester.mjs';
import { type Found, Scopes } from './scopes.mjs';
import type {
  Message,
  RequestId,
  ScopeChallengeResolver,
  Sdk,
  SendOptions,
  Transport,
  TransportOptions,
} from './sdk.mjs';
import { StoredSessions } from './stored-sessions.mjs';
import { checkMs, forbidden, identityOf, keepAliveOf } from './transport-options.mjs';

/** An answer that is to be waited for. */
type Waiting = { done: Promise<void> } | undefined;

/** A request on its way to its session. */
interface Asked {
  exchange: Exchange;
  /** Its body, as the SDK is to read it. */
  given: unknown;
  /** The messages in it; nothing where the SDK takes none. */
  messages: Message[] | undefined;
  /** The scopes that its sender has not, as far as that was asked. */
  challenge?: Found;
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
  #answersJson: boolean;
  #versions: string[];
  #scopes: Scopes;
  #opened: OpenSession | undefined;
  #identity: Identity;
  #closed = false;
  #closing: Promise<void> | undefined;
  #adopting: Promise<void> | undefined;
  #replay: Replay;
  #requests = 0;

  /** The transport may get its `onerror` later, and another one. */
  #onerror = (error: Error) => this.#transport.onerror?.(error);

  constructor(transport: Transport, sdk: Sdk, options: TransportOptions, makeId: () => string) {
    this.#transport = transport;
    this.#receiver = new Receiver(transport, sdk);
    this.#sdk = sdk;
    this.#options = options;
    this.#makeId = makeId;
    this.#runtime = runtimeFor(options);
    this.#identity = identityOf(this.#runtime, options);
    this.#keepAliveMs = options.keepAliveMs;
    this.#retryMs = checkMs('retryInterval', options.retryInterval);
    this.#maxBodyBytes = maxBodyBytes(options.maxRequestBodySize);
    this.#answersJson = Boolean(options.enableJsonResponse);
    this.#versions = options.supportedProtocolVersions ?? sdk.versions;
    this.#replay = new Replay(sdk, this.#receiver);
    this.#scopes = new Scopes(sdk, this.#onerror);
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
    this.#scopes.setResolver(resolver);
  }

  /** Answers an exchange. Resolves when the answer is handed over, or the peer is gone; never rejects. */
  async serve(exchange: Exchange): Promise<void> {
    this.#requests += 1;
    try {
      exchange.checkUnanswered();
      // What takes no time is not waited for: each wait costs every call.
      const admitted = this.#admit(exchange);
      const answer = admitted instanceof Promise ? await admitted : admitted;
      if (answer !== undefined) {
        await answer.done;
      }
    } catch (error) {
      failed(exchange, this.#sdk.major, this.#onerror, error);
    }
    this.#requests -= 1;
  }

  /** Answers a request that needs no stream; otherwise starts the answer that is to be waited for. */
  #admit(exchange: Exchange): Waiting | Promise<Waiting> {
    // Where it fails, that is told elsewhere.
    return this.#adopting === undefined
      ? this.#read(exchange)
      : this.#adopting.catch(() => {}).then(() => this.#read(exchange));
  }

  #read(exchange: Exchange): Waiting | Promise<Waiting> {
    if (this.#closed) {
      return this.#serveElsewhere(exchange);
    }
    const refusal = forbidden(this.#sdk.major, exchange, this.#options);
    if (refusal !== null) {
      return this.#refused(exchange, refusal);
    }
    identify(exchange, this.#identity);
    const read = bodyOf(exchange, this.#maxBodyBytes);
    return read instanceof Promise ? read.then((read) => this.#enter(exchange, read)) : this.#enter(exchange, read);
  }

  #enter(exchange: Exchange, { text: body, tooLarge, gone }: ReadBody): Waiting | Promise<Waiting> {
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
    const opened = this.#opened;
    if (opened === undefined) {
      return this.#enterUnopened(exchange, body);
    }
    const { session, answers } = opened;
    const given = exchange.parsedBody ?? body;
    let messages = undefined as Message[] | undefined;
    let challenge: Found;
    // A call is begun only where the SDK takes its messages, and its sender lacks nothing.
    const opensCall = (): boolean => {
      messages = parsed(this.#sdk, given);
      challenge = messages && this.#scopes.find(messages, exchange.auth);
      return messages !== undefined && challenge === undefined;
    };
    const { server, requester } = exchange;
    const entered = session.enter(exchange.head(), server, requester, body, this.#answersJson, opensCall);
    if (entered instanceof Refusal) {
      if (session.hasEnded) {
        exchange.text = body;
        return this.#serveElsewhere(exchange);
      }
      return this.#refused(exchange, entered, given);
    }
    if (entered instanceof Admission) {
      return this.#serve(opened, entered, { exchange, given, messages, challenge });
    }
    const answer = exchange.stream(entered, answers);
    if (messages !== undefined) {
      opened.run(messages, exchange, this.#answersJson);
    }
    return answer;
  }

  /** Serves a request for a session that is over here: another process may have taken it over, and then its readers go on. */
  async #serveElsewhere(exchange: Exchange): Promise<Waiting> {
    const options = { ...this.#options, onerror: this.#onerror };
    const served = await new StoredSessions(this.#sdk, options).serve(exchange);
    return served === 'served' ? undefined : this.#refuse(exchange, 'session_ended');
  }

  /** Serves a request for a session before there is one: an `initialize` opens it. */
  async #enterUnopened(exchange: Exchange, body: Body): Promise<Waiting> {
    const { engine } = this.#runtime;
    const { major } = this.#sdk;
    const admission = engine.admit(exchange.head(), exchange.requester, body, this.#answersJson, major, this.#versions);
    const given = exchange.parsedBody ?? body;
    if (admission instanceof Refusal) {
      return (await this.#serveNamed(exchange, body)) ? undefined : this.#refused(exchange, admission, given);
    }
    const messages = parsed(this.#sdk, given);
    if (messages === undefined) {
      return this.#refused(exchange, refusalOf(major, 'invalid_message'), given);
    }
    const { facts } = admission;
    const run = () => this.#run(admission, facts, { exchange, given, messages });
    return facts & IS_INITIALIZE ? this.#begun(messages, exchange, run) : run();
  }

  /** Serves an admitted request that opens no connection, or not at once. */
  #serve(opened: OpenSession, admission: Admission, request: Asked): Waiting | Promise<Waiting> {
    const { facts } = admission;
    const { exchange, given } = request;
    const action = facts & ACTION;
    if (action === DELETE) {
      return this.#delete(opened, () => exchange.whole(facts >> STATUS_BIT, {}));
    }
    const messages = messagesOf(this.#sdk, admission, facts, given, request.messages);
    if (messages === undefined) {
      return this.#refused(exchange, refusalOf(this.#sdk.major, 'invalid_message'), given);
    }
    if (action === MESSAGE) {
      opened.take(admission, facts, messages, exchange, () => exchange.whole(facts >> STATUS_BIT, {}));
      return undefined;
    }
    return this.#run(admission, facts, { ...request, messages });
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

  async #run(admission: Admission, facts: number, { exchange, messages = [], challenge }: Asked): Promise<Waiting> {
    if (await this.#scopes.challenged(messages, exchange, challenge)) {
      return undefined;
    }
    const opened = this.#opened;
    if (this.#closed || opened === undefined) {
      return this.#refuse(exchange, 'session_ended');
    }
    const connection = opened.session.open(admission, this.#answersJson);
    if (connection instanceof Refusal) {
      return this.#refused(exchange, connection);
    }
    const answer = exchange.stream(connection, opened.answers);
    opened.runAll(admission, facts, messages, exchange, this.#answersJson);
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
      adopted.refuse('session_unread', describe(error));
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
      // The engine ends a session that was given another revision than its client has.
      const isOver = () => this.#closed || session.hasEnded;
      await this.#replay.of(adopted.replay, exchange, isOver);
      await onReady();
      checkGoesOn(isOver);
      this.#acceptOthers(session);
    } finally {
      this.#requests -= 1;
    }
  }

  /** The id of the new session; nothing when there are too many sessions. */
  #open(exchange: Exchange): string | undefined {
    const sessionId = this.#makeId();
    const session = opened(this.#runtime, this.#sdk.major, exchange, sessionId, this.#versions, this.#retryMs);
    if (session === undefined) {
      return undefined;
    }
    try {
      this.#begin(sessionId, session, exchange);
    } catch (error) {
      session.end();
      throw error;
    }
    this.#acceptOthers(session);
    return sessionId;
  }

  /** From now on the transport has the session. */
  #begin(sessionId: string, session: Session, exchange: Exchange): void {
    if (this.#keepAliveMs !== undefined) {
      session.setKeepAliveMs(keepAliveOf(this.#keepAliveMs));
    }
    this.#transport.sessionId = sessionId;
    const endpoint = this.#runtime.outlivesProcess ? endpointOf(exchange) : '';
    const takePosted = () => this.#takePosted(endpoint);
    this.#opened = new OpenSession(this.#runtime, session, sessionId, this.#receiver, this.#onerror, takePosted);
    this.#runtime.opened(session.name, this);
  }

  /** From now on requests may come that have no exchange here. */
  #acceptOthers(session: Session): void {
    if (this.#runtime.outlivesProcess) {
      session.acceptPosted();
    }
    const terms = { jsonResponse: this.#answersJson, maxBodyBytes: this.#maxBodyBytes };
    this.#options[frontDoor]?.handOver(session, this.#runtime, this.#identity, terms);
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
    const admission = posted.admit(opened.session, this.#answersJson);
    if (admission === null) {
      return undefined;
    }
    const { facts } = admission;
    const action = facts & ACTION;
    if (action === DELETE) {
      // Its client is answered once the session is gone.
      return this.#delete(opened);
    }
    const messages = messagesOf(this.#sdk, admission, facts, posted.body, undefined);
    if (messages === undefined) {
      const refusal = refusalOf(this.#sdk.major, 'invalid_message');
      this.#report(this.#sdk.bodyError?.(refusal, posted.body) ?? new Error(refusal.message));
      return posted.refuse('invalid_message');
    }
    const request = relayedRequest(posted, String(opened.sessionId), endpoint);
    if (action === CALL && (await this.#scopes.find(messages, request.auth))) {
      throw new Error('A relayed request lacks scopes: it cannot be answered with a challenge');
    }
    opened.give(admission, messages, request, this.#answersJson, posted);
  }

  takeArrival(arrival: Arrival, facts: number, body: string): boolean {
    const opened = this.#opened;
    // The body says all of a plain call, so its admission need not cross.
    const admission = facts === CALL ? undefined : arrival.admission;
    const messages = admission ? messagesOf(this.#sdk, admission, facts, body, undefined) : parsed(this.#sdk, body);
    if (messages === undefined || this.#closed || opened === undefined || !this.#scopes.needsNone(messages)) {
      return false;
    }
    const request = arrivedRequest(arrival);
    if (admission) {
      opened.give(admission, messages, request, this.#answersJson, arrival);
    } else if (arrival.begin()) {
      opened.run(messages, request, this.#answersJson);
    }
    return true;
  }

  async #delete({ session, sessionId }: OpenSession, answer?: () => void): Promise<undefined> {
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
  send(message: Message, options?: SendOptions): Promise<void> {
    const related = options?.relatedRequestId;
    const opened = this.#closed ? undefined : this.#opened;
    if (opened === undefined) {
      return sendUnopened(message, related);
    }
    if (message.method === undefined) {
      this.#replay.answered(message);
    }
    return opened.outbox.send(message, related);
  }

  closeConnection(requestId: RequestId, options?: CloseOptions): boolean {
    return this.#opened?.closeConnection(requestId, options) ?? false;
  }

  closeStandalone(options?: CloseOptions): boolean {
    return this.#opened?.closeStandalone(options) ?? false;
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
    this.#replay.close();
    this.#opened?.close();
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
