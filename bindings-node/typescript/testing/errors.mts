// The verdict on a call.
import { AssertionError } from 'node:assert';

/** A call's messages did not come exactly once. The lists hold messages in their short form. */
export class NotExactlyOnce extends AssertionError {
  readonly lost: unknown[];
  readonly repeated: unknown[];
  readonly outOfOrder: unknown[];
  readonly foreign: unknown[];

  /** @internal */
  constructor(message: string, { lost, repeated, outOfOrder, foreign }: Findings) {
    super({ message });
    this.name = 'NotExactlyOnce';
    this.lost = lost;
    this.repeated = repeated;
    this.outOfOrder = outOfOrder;
    this.foreign = foreign;
  }
}

/** @internal */
export type Findings = Pick<NotExactlyOnce, 'lost' | 'repeated' | 'outOfOrder' | 'foreign'>;
