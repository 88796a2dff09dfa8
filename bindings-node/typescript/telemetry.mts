// OpenTelemetry: what the engine observes, as spans and histograms of the program's own providers.
//
// Nothing is imported. The API keeps what the program registers in one place for all of its copies, and that is looked at:
// nothing is done before there is something. What a provider or an exporter does wrong costs its span or its measurement, and
// no call.
import { describe } from './host.mjs';
import {
  type Body,
  type CallSpan,
  Engine,
  type Observed,
  type Session,
  type TaskCall,
  type Travelling,
} from './native.mjs';
import { state, writeLogOnce } from './runtime.mjs';
import { isRequest, type Message } from './server/sdk.mjs';

type Attributes = Record<string, string | number>;

interface SpanContext {
  traceId: string;
  spanId: string;
  traceFlags: number;
  isRemote?: boolean;
}

interface Span {
  spanContext(): SpanContext;
  setAttributes(attributes: Attributes): unknown;
  setStatus(status: { code: number; message: string }): unknown;
  end(): void;
}

/** The API's context: values by key. */
interface Context {
  getValue(key: symbol): unknown;
  setValue(key: symbol, value: unknown): Context;
  deleteValue(key: symbol): Context;
}

/** Runs what a call does, in the call's span. */
type Enter = (give: () => void) => void;

interface Tracer {
  startSpan(
    name: string,
    options: { kind?: number; attributes?: Attributes; startTime?: number },
    context: Context,
  ): Span;
}

interface Histogram {
  record(value: number, attributes: Attributes, context?: Context): void;
}

interface Meter {
  createHistogram(name: string, options: { unit: string; advice: { explicitBucketBoundaries: number[] } }): Histogram;
}

/** What the program has registered with the API. */
interface Registered {
  trace?: { getTracer(name: string, version: string): Tracer };
  metrics?: { getMeter(name: string, version: string): Meter };
  context?: { active(): Context; with<Done>(context: Context, act: () => Done): Done };
  propagation?: {
    extract(
      context: Context,
      carrier: unknown,
      getter: { get(of: unknown, key: string): unknown; keys(of: unknown): string[] },
    ): Context;
  };
}

const REGISTRY = Symbol.for('opentelemetry.js.api.1');
/** The key of the API for the span of a context. */
const SPAN = Symbol.for('OpenTelemetry Context Key SPAN');
const SERVER = 1;
const ERROR = 2;
/** Spans of calls that may be open. Older ones are ended. */
const MAX_OPEN = 20_000;
const TRACEPARENT = 'traceparent';
const NO_TRACE = /^0+$/;

/** A context where the program has registered nothing that manages them. */
class Values implements Context {
  #values: ReadonlyMap<symbol, unknown>;

  constructor(values: ReadonlyMap<symbol, unknown> = new Map()) {
    this.#values = values;
  }

  getValue(key: symbol): unknown {
    return this.#values.get(key);
  }

  setValue(key: symbol, value: unknown): Context {
    return new Values(new Map([...this.#values, [key, value]]));
  }

  deleteValue(key: symbol): Context {
    return new Values(new Map([...this.#values].filter(([known]) => known !== key)));
  }
}

const EMPTY = new Values();

const carried = {
  get: (of: unknown, key: string): unknown => (of as Record<string, unknown>)[key],
  keys: (of: unknown): string[] => Object.keys(of as object),
};

const spanOf = (context: Context): Span | undefined => context.getValue(SPAN) as Span | undefined;

/** The name of a call's span among those that are open. */
const keyOf = ({ session, request }: Pick<Observed, 'session' | 'request'>): string => `${session} ${request}`;

function isValid({ traceId, spanId }: SpanContext): boolean {
  return !NO_TRACE.test(traceId) && !NO_TRACE.test(spanId);
}

/** The place of a span as W3C Trace Context writes it. */
function written({ traceId, spanId, traceFlags }: SpanContext): string {
  return `00-${traceId}-${spanId}-${(traceFlags & 0xff).toString(16).padStart(2, '0')}`;
}

/** What is used of OpenTelemetry, on this thread. */
export class Telemetry {
  #registered: Registered;
  #tracer: Tracer | undefined;
  #meter: Meter | undefined;
  #instruments = new Map<string, Histogram>();
  #open = new Map<string, Span>();
  #boundaries: number[];

  constructor(registered: Registered) {
    this.#registered = registered;
    this.#tracer = registered.trace?.getTracer('tailrope', Engine.version());
    this.#meter = registered.metrics?.getMeter('tailrope', Engine.version());
    this.#boundaries = Engine.observe((observed) => attempt(() => this.#observe(observed)));
  }

  get #active(): Context {
    return this.#registered.context?.active() ?? EMPTY;
  }

  /** Where a request is in a trace: what its `_meta` says, or the context that runs. */
  #parent(message: unknown): Context {
    const meta = (message as { params?: { _meta?: unknown } }).params?._meta;
    if (typeof meta === 'object' && meta !== null) {
      const said = this.#registered.propagation?.extract(this.#active.deleteValue(SPAN), meta, carried);
      if (said !== undefined && spanOf(said) !== undefined) {
        return said;
      }
    }
    return this.#active;
  }

  /** Begins the span of a call. Gives what runs its handler in that span. */
  begin(session: Session, message: Message): Enter | undefined {
    const said = isRequest(message) ? session.callSpan(message.id) : null;
    if (!said || !isRequest(message)) {
      return undefined;
    }
    const parent = this.#parent(message);
    const span = this.#begin(said, parent);
    if (span === undefined) {
      return undefined;
    }
    session.traceCall(message.id, written(span.spanContext()));
    return this.#enter(span, parent);
  }

  /** The same of a run of a call that may become a task: it is in the call's span, which the first one begins. */
  beginRun(call: TaskCall, message: unknown): Enter | undefined {
    const said = call.span();
    const span = said && (this.#open.get(keyOf(said)) ?? this.#begin(said, this.#parent(message)));
    return span ? this.#enter(span, this.#active) : undefined;
  }

  #enter(span: Span, parent: Context): Enter {
    const inner = parent.setValue(SPAN, span);
    return (give) => {
      const { context } = this.#registered;
      return context === undefined ? give() : context.with(inner, give);
    };
  }

  /** Begins the span of a call; nothing where it has no place in a trace. */
  #begin(said: CallSpan, parent: Context): Span | undefined {
    const { name, attributes } = said;
    const span = this.#tracer?.startSpan(name, { kind: SERVER, attributes }, parent);
    if (span === undefined || !isValid(span.spanContext())) {
      return undefined;
    }
    const [oldest] = this.#open.size < MAX_OPEN ? [] : this.#open;
    if (oldest !== undefined) {
      this.#open.delete(oldest[0]);
      oldest[1].end();
    }
    this.#open.set(keyOf(said), span);
    return span;
  }

  /** A span of the relay, as the place in the trace from which a call goes on at its own process. */
  relayed(message: Message): string | undefined {
    const span = this.#tracer?.startSpan('relay', {}, this.#parent(message));
    span?.end();
    const place = span?.spanContext();
    return place !== undefined && isValid(place) ? written(place) : undefined;
  }

  /** Something is over: see the core's `Observation`. */
  #observe(observed: Observed): void {
    const { parent, name, instrument, durationMs, error, attributes, dimensions } = observed;
    const key = keyOf(observed);
    let span = this.#open.get(key);
    this.#open.delete(key);
    if (parent && name) {
      span = this.#begun(parent, name, durationMs ?? 0);
    }
    try {
      if (instrument && durationMs !== undefined && durationMs !== null) {
        this.#measure(instrument, durationMs / 1_000, dimensions, span);
      }
    } finally {
      if (span !== undefined) {
        span.setAttributes(attributes);
        if (error) {
          span.setStatus({ code: ERROR, message: error });
        }
        span.end();
      }
    }
  }

  #measure(instrument: string, seconds: number, dimensions: Attributes, span: Span | undefined): void {
    const advice = { explicitBucketBoundaries: this.#boundaries };
    const known = this.#instruments.get(instrument);
    const histogram = known ?? this.#meter?.createHistogram(instrument, { unit: 's', advice });
    if (histogram !== undefined) {
      this.#instruments.set(instrument, histogram);
      histogram.record(seconds, dimensions, span && this.#active.setValue(SPAN, span));
    }
  }

  /** A span that began so long ago. */
  #begun(parent: string, name: string, durationMs: number): Span | undefined {
    const [, traceId = '', spanId = '', flags = ''] = parent.split('-');
    const place = { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
    const context = this.#active.setValue(SPAN, { spanContext: () => place });
    return this.#tracer?.startSpan(name, { startTime: Date.now() - durationMs }, context);
  }
}

/** Does what no call may fail of. */
function attempt<Done>(act: () => Done): Done | undefined {
  try {
    return act();
  } catch (error) {
    writeLogOnce('warn', `OpenTelemetry failed, and calls go on without it: ${describe(error)}`);
    return undefined;
  }
}

/** What is used of OpenTelemetry; nothing before the program has set it up. */
export function look(): Telemetry | undefined {
  if (state.telemetry === undefined) {
    const registered = (globalThis as { [REGISTRY]?: Registered })[REGISTRY];
    if (registered?.trace !== undefined || registered?.metrics !== undefined) {
      state.telemetry = attempt(() => new Telemetry(registered));
    }
  }
  return state.telemetry;
}

/** Gives the SDK a message, in the span of its call where it is one. */
export function within(session: Session, message: Message, give: () => void): void {
  enterWith((telemetry) => telemetry.begin(session, message), give);
}

/** Gives the SDK a call that may become a task, in the call's span. */
export function withinTask(call: TaskCall, message: unknown, give: () => void): void {
  enterWith((telemetry) => telemetry.beginRun(call, message), give);
}

function enterWith(begin: (telemetry: Telemetry) => Enter | undefined, give: () => void): void {
  const telemetry = look();
  const enter = telemetry && attempt(() => begin(telemetry));
  if (enter === undefined) {
    give();
  } else {
    enter(give);
  }
}

/** What travels of a request that is relayed, with where it is in its trace. */
export function relaying(travelling: Travelling, body: Body): Travelling {
  const telemetry = look();
  const trace =
    telemetry &&
    attempt(() => {
      const message = JSON.parse(typeof body === 'string' ? body : new TextDecoder().decode(body)) as Message;
      return isRequest(message) ? telemetry.relayed(message) : undefined;
    });
  if (trace === undefined) {
    return travelling;
  }
  const { headers } = travelling;
  const others = headers.filter((_, at) => headers[at - (at % 2)] !== TRACEPARENT);
  return { ...travelling, headers: [...others, TRACEPARENT, trace] };
}
