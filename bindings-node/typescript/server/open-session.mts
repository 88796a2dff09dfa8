// What there is of a session once it is open: what its server is given, and what it sends.
import { ours, TailropeError } from '../errors.mjs';
import type { Admission, Session } from '../native.mjs';
import type { Runtime } from '../runtime.mjs';
import { UserStore } from '../store/user-store.mjs';
import { within } from '../telemetry.mjs';
import { type CloseOptions, pausesOf } from './close.mjs';
import type { AnswerContext, Exchange, SeenRequest } from './exchange.mjs';
import { ACTION, ANSWERS, CANCELS, IS_INITIALIZE, MESSAGE } from './facts.mjs';
import { Outbox } from './outbox.mjs';
import { Outcomes } from './outcomes.mjs';
import type { Receiver } from './receiver.mjs';
import { report, reportFailure } from './refusal.mjs';
import { isRequest, type Message, type RequestId } from './sdk.mjs';

/** Opens the session that a request asks for; nothing when there are too many sessions. */
export function opened(
  { engine }: Runtime,
  major: number,
  { server, requester }: Exchange,
  sessionId: string,
  versions: string[],
  retryMs: number | undefined,
): Session | undefined {
  try {
    return engine.openSession(String(sessionId), server, requester, major, versions, retryMs);
  } catch (thrown) {
    const error = ours(thrown);
    if (error instanceof TailropeError && error.code === 'too_many_sessions') {
      return undefined;
    }
    throw error;
  }
}

/** A request that has no exchange here. */
interface Detached {
  /** A call is going to be run. False where it may not. */
  begin(admission: Admission): boolean;
  /** The SDK has been given messages that are not answered. */
  done(): void;
}

/** A session that a transport has. */
export class OpenSession {
  readonly sessionId: string;
  readonly session: Session;
  readonly answers: AnswerContext;
  readonly outbox: Outbox;
  #runtime: Runtime;
  #receiver: Receiver;
  #onerror: (error: Error) => void;
  #outcomes: Outcomes | undefined;
  #canBePolled = false;

  /** `takePosted` takes what other processes relay. */
  constructor(
    runtime: Runtime,
    session: Session,
    sessionId: string,
    receiver: Receiver,
    onerror: (error: Error) => void,
    takePosted: () => void,
  ) {
    this.#runtime = runtime;
    this.session = session;
    this.sessionId = sessionId;
    this.#receiver = receiver;
    this.#onerror = onerror;
    this.answers = {
      runtime,
      sessionId,
      open: new Set(),
      onRefused: (body) => report(onerror, new Error(JSON.parse(body).error.message)),
    };
    this.#outcomes = outcomesOf(runtime, session, takePosted);
    this.outbox = new Outbox(runtime, session, this.#outcomes);
  }

  /** Gives the SDK the messages of a call whose connection is open. */
  run(messages: Message[], request: SeenRequest, jsonResponse: boolean, isInitialize = false): void {
    const canPoll = !jsonResponse && this.#canPoll(isInitialize);
    for (const message of messages) {
      const failed = (error: unknown) => {
        reportFailure(this.#onerror, 'a message was not taken', error);
        if (isRequest(message)) {
          this.session.cancelled(message.id);
        }
      };
      within(this.session, message, () => this.#receiver.dispatch(message, request, canPoll, failed));
    }
  }

  /** The same for a call that may say more than its requests. */
  runAll(admission: Admission, facts: number, messages: Message[], request: SeenRequest, jsonResponse: boolean): void {
    if (facts & ANSWERS) {
      this.session.received(admission);
    }
    this.run(messages, request, jsonResponse, (facts & IS_INITIALIZE) !== 0);
    this.#noteCancelled(admission, facts);
  }

  /** Gives the SDK messages that are not answered. `answer` is called before. */
  take(admission: Admission, facts: number, messages: Message[], request: SeenRequest, answer?: () => void): void {
    this.session.received(admission);
    answer?.();
    this.run(messages, request, true);
    this.#noteCancelled(admission, facts);
  }

  /** Gives the SDK the messages of a request that is answered elsewhere. */
  give(admission: Admission, messages: Message[], request: SeenRequest, jsonResponse: boolean, asked: Detached): void {
    const { facts } = admission;
    if ((facts & ACTION) === MESSAGE) {
      this.take(admission, facts, messages, request);
      asked.done();
    } else if (asked.begin(admission)) {
      this.runAll(admission, facts, messages, request, jsonResponse);
    }
  }

  /** The messages were given to the SDK: what they cancel gets its end. */
  #noteCancelled(admission: Admission, facts: number): void {
    if (facts & CANCELS) {
      this.session.dispatched(admission);
    }
  }

  /** By the revision, which does not change once it is negotiated. */
  #canPoll(isInitialize: boolean): boolean {
    const canPoll = this.#canBePolled || this.session.canPoll;
    this.#canBePolled = canPoll && !isInitialize;
    return canPoll;
  }

  closeConnection(requestId: RequestId, options?: CloseOptions): boolean {
    return this.session.closeConnection(requestId, ...pausesOf(options));
  }

  closeStandalone(options?: CloseOptions): boolean {
    return this.session.closeStandalone(...pausesOf(options));
  }

  /** The transport is closed. The program may do so because the process ends: what outlives that keeps the session. */
  close(): void {
    this.session.release();
    for (const answer of [...this.answers.open]) {
      answer.finish();
    }
    this.#outcomes?.close();
    this.#runtime.closed(this.session.name);
  }
}

/** What waits for the store where that may answer later. */
function outcomesOf(runtime: Runtime, session: Session, takePosted: () => void): Outcomes | undefined {
  const { hostStore } = runtime;
  if (hostStore !== undefined) {
    return new UserStore(runtime, session, hostStore);
  }
  if (runtime.outlivesProcess) {
    return new Outcomes(runtime, session, takePosted);
  }
  return runtime.answersElsewhere ? new Outcomes(runtime, session) : undefined;
}
