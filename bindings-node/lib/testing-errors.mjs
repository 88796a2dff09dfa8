// What the kit throws: failures of a test's steps, and the verdict on a call.
import { AssertionError } from 'node:assert';

/** A step of the test that could not be done. `code` is stable and the same in every language. */
export class KitError extends Error {
  constructor(code, message, status) {
    super(message);
    this.name = 'KitError';
    this.code = code;
    this.status = status;
  }
}

/** A call's messages did not come exactly once. The lists hold messages in their short form. */
export class NotExactlyOnce extends AssertionError {
  constructor(message, { lost, repeated, outOfOrder, foreign }) {
    super({ message });
    this.name = 'NotExactlyOnce';
    Object.assign(this, { lost, repeated, outOfOrder, foreign });
  }
}
