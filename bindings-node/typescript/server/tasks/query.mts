// A request about a task, wherever the task is.
import { type TaskQuery as NativeQuery, Refusal } from '../../native.mjs';
import type { Runtime, Waiter } from '../../runtime.mjs';
import { withResolvers } from '../with-resolvers.mjs';
import { type CallContext, TaskedCall } from './call.mjs';
import type { Origin } from './origin.mjs';

export class TaskQuery implements Waiter {
  scheduled = false;
  #context: CallContext;
  #native: NativeQuery;
  #origin: Origin;
  #answer = withResolvers<string | Refusal>();
  #isAnswered = false;
  /** The call of the task, where that goes on here because of this request. It has the same key. */
  #served: TaskedCall | undefined;
  #isServed = false;

  constructor(context: CallContext, native: NativeQuery, origin: Origin) {
    this.#context = context;
    this.#native = native;
    this.#origin = origin;
  }

  get #runtime(): Runtime {
    return this.#context.runtime;
  }

  /** Resolves to the body of the answer, or to a refusal. */
  answer(): Promise<string | Refusal> {
    const { key } = this.#native;
    this.#runtime.asking.set(key, this.#origin);
    this.#runtime.wait(key, this);
    this.pump();
    return this.#answer.promise;
  }

  pump(): void {
    try {
      this.#take();
    } catch (error) {
      this.#answer.reject(error);
      this.#isAnswered = true;
    }
    this.#served?.pump();
    this.#runtime.armDue();
    this.#forget();
  }

  #take(): void {
    for (let answer = this.#native.take(); answer !== null; answer = this.#native.take()) {
      if (typeof answer === 'string' || answer instanceof Refusal) {
        this.#isAnswered = true;
        this.#answer.resolve(answer);
      } else {
        this.#isServed = true;
        this.#served = new TaskedCall(this.#context, answer, this.#origin, () => {
          this.#isServed = false;
          this.#forget();
        });
      }
    }
  }

  #forget(): void {
    if (this.#isAnswered) {
      this.#runtime.asking.delete(this.#native.key);
      if (!this.#isServed) {
        this.#runtime.forget(this.#native.key);
      }
    }
  }
}
