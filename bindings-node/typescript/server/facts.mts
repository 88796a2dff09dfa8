// The facts of an admission, one number: see the native `Admission`.
export const ACTION = 7;
export const LISTEN = 1;
export const RESUME = 2;
export const DELETE = 3;
export const MESSAGE = 4;
export const CALL = 5;
export const IS_INITIALIZE = 8;
export const CANCELS = 16;
export const ANSWERS = 32;
export const REWRITTEN = 64;
/** From this bit on: the status of an answer that is empty. */
export const STATUS_BIT = 8;
