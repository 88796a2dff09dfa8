// What handlers ask their clients while their call may become a task.
//
// In 2026-07-28 a server has no requests of its own, and the SDK refuses them. Here the call takes them instead. A server of the
// SDK's that serves an older revision sends them: it checks them, waits, and reads the answers, as it does in a session.
import type { JSONRPCMessage, McpServer, RequestId, Server, Transport } from '@modelcontextprotocol/server';

import { withResolvers } from '../with-resolvers.mjs';
import type { Room } from './room.mjs';

const REVISION = '2025-11-25';
const METHODS = ['elicitation/create', 'sampling/createMessage', 'roots/list'];
/** What the error of a question has that nobody can be asked. */
const REFUSED = {};

type ServerClass = new (...args: ConstructorParameters<typeof Server>) => Server;
/** The SDK has several signatures for each of these; ours hand on what they get. */
// biome-ignore lint/suspicious/noExplicitAny: see above.
type Method = (...args: any[]) => any;
type Methods = Record<string, Method | undefined>;

/** Who takes the questions of a run: the call. */
export interface Asked extends Room {
  /** Asks the client; `answered` gets its result, or nothing where it cannot be asked. Returns the number of the question. */
  ask(request: JSONRPCMessage, answered: (result: unknown) => void): number;
  withdraw(ask: number): void;
}

/** A run whose handlers may ask: who takes the questions, and what tells that nobody waits for answers. */
export interface AskingRun {
  readonly asked: Asked;
  readonly signal: AbortSignal;
}

/** The server of the SDK's that sends the questions of one run. */
class Questioner implements Transport {
  onclose?: (() => void) | undefined;
  onerror?: ((error: Error) => void) | undefined;
  onmessage?: Transport['onmessage'];
  #asked: Asked;
  #server: Server;
  #ready = withResolvers<void>();
  /** The numbers of the questions that are open. */
  #open = new Map<RequestId, number>();

  constructor(SdkServer: ServerClass, asked: Asked) {
    this.#asked = asked;
    this.#server = new SdkServer({ name: 'tailrope', version: '0' }, { capabilities: {} });
  }

  /** The server, once it knows the client of `of`. */
  async open(of: Server): Promise<Server> {
    await this.#server.connect(this);
    const clientInfo = of.getClientVersion() ?? { name: 'unknown', version: '0' };
    const params = { protocolVersion: REVISION, capabilities: of.getClientCapabilities() ?? {}, clientInfo };
    this.onmessage?.({ jsonrpc: '2.0', id: 0, method: 'initialize', params } as JSONRPCMessage);
    await this.#ready.promise;
    return this.#server;
  }

  async start(): Promise<void> {}

  async send(message: JSONRPCMessage): Promise<void> {
    if (!('method' in message)) {
      this.#ready.resolve();
    } else if ('id' in message) {
      const { id } = message;
      const answered = (result: unknown) => {
        this.#open.delete(id);
        if (result === undefined) {
          this.#receive({ id, error: { code: -32_600, message: 'The client cannot be asked', data: REFUSED } });
        } else if (!this.#receive({ id, result })) {
          this.#receive({ id, error: { code: -32_602, message: "The client's answer is no result" } });
        }
      };
      this.#open.set(id, this.#asked.ask(message, answered));
    } else if (message.method === 'notifications/cancelled') {
      const { requestId } = message.params ?? {};
      this.#withdraw(requestId as RequestId);
    }
  }

  /** Hands an answer to the SDK, and says whether it could read it: it drops what it cannot, and its handler would wait. */
  #receive(answer: object): boolean {
    let isRead = true;
    this.#server.onerror = () => {
      isRead = false;
    };
    this.onmessage?.({ jsonrpc: '2.0', ...answer } as never);
    return isRead;
  }

  #withdraw(id: RequestId): void {
    const ask = this.#open.get(id);
    if (ask !== undefined) {
      this.#open.delete(id);
      this.#asked.withdraw(ask);
    }
  }

  /** Handlers that wait for an answer are told that none comes. */
  leave(): void {
    [...this.#open.keys()].forEach((id) => this.#withdraw(id));
    this.onclose?.();
  }

  async close(): Promise<void> {
    this.leave();
  }
}

/** Asks through the call in which a server serves now. */
class Asking {
  #SdkServer: ServerClass;
  #of: Server;
  #run: AskingRun;
  #server: Promise<Server> | undefined;

  constructor(SdkServer: ServerClass, of: Server, run: AskingRun) {
    this.#SdkServer = SdkServer;
    this.#of = of;
    this.#run = run;
  }

  /** Most handlers ask nothing: what asks is made when one does. */
  #open(): Promise<Server> {
    const questioner = new Questioner(this.#SdkServer, this.#run.asked);
    // Nobody waits for answers any more.
    this.#run.signal.addEventListener('abort', () => questioner.leave(), { once: true });
    return questioner.open(this.#of);
  }

  /** What `pose` has the server ask, or else what the SDK makes of it. */
  async ask(pose: (server: Server) => unknown, stock: () => unknown): Promise<unknown> {
    this.#server ??= this.#open();
    try {
      return await pose(await this.#server);
    } catch (error) {
      if ((error as { data?: unknown } | null)?.data === REFUSED) {
        return stock();
      }
      throw error;
    }
  }
}

const ASKING = Symbol('tailrope.asking');

/** A server whose handlers may ask: how they do, while it serves a call. A property costs each call less than a `WeakMap`. */
interface Prepared {
  [ASKING]?: Asking | undefined;
}

/** The server that a factory made has the handlers of this run ask through it. */
export function takeQuestions(SdkServer: ServerClass, made: McpServer | Server, run: AskingRun | undefined): void {
  const server: Server & Prepared = 'server' in made ? made.server : made;
  const isPrepared = ASKING in server;
  // A factory may give the same one again.
  if (run !== undefined || isPrepared) {
    server[ASKING] = run && new Asking(SdkServer, server, run);
  }
  if (run !== undefined && !isPrepared) {
    prepare(server);
  }
}

function prepare(server: Server): void {
  for (const name of ['elicitInput', 'createMessage', 'listRoots']) {
    put(server, name, () => true, name);
  }
  put(server, 'request', isQuestion, 'request');
  const own = server as unknown as { buildContext?: Method };
  const { buildContext } = own;
  // It is no promise of the SDK's: without it `ctx.mcpReq.send` is refused as before.
  if (typeof buildContext === 'function') {
    own.buildContext = (...args) => {
      const context = buildContext.apply(server, args);
      put(server, 'send', isQuestion, 'request', context.mcpReq);
      return context;
    };
  }
}

const isQuestion = ({ method }: { method: string }) => METHODS.includes(method);

/** Puts ours in the place of a method that asks; `as` is that method of the server which sends our questions. */
function put(server: Server & Prepared, name: string, asks: Method, as: string, on: object = server): void {
  const methods = on as Methods;
  const stock = methods[name];
  methods[name] = (...args) => {
    const now = asks(...args) ? server[ASKING] : undefined;
    const again = () => stock?.apply(on, args);
    return now === undefined
      ? again()
      : now.ask((questioner) => (questioner as unknown as Methods)[as]?.(...args), again);
  };
}
