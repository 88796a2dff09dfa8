/** Whether a store gets this where a stream begins without a message: the SDKs give it an empty one. */
export function isPriming(message: unknown): message is null | undefined | Record<string, never> {
  return message === undefined || message === null || Object.keys(message).length === 0;
}
