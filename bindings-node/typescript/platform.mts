// What the environment says.

/** The kill switch: with TAILROPE_DISABLE=1 in the environment everything is stock. */
export function isDisabled(): boolean {
  return !['', '0', undefined].includes(process.env.TAILROPE_DISABLE);
}
