// What the environment says: which package has the native half, and whether it is wanted.

/** `linux-x64-gnu`, `darwin-arm64`, ...: what the packages with the native half are named after. */
export function platform() {
  const { platform: os, arch, report } = process;
  if (os === 'linux') {
    // The network part of a report is slow and not needed.
    report.excludeNetwork = true;
    return `${os}-${arch}-${report.getReport().header.glibcVersionRuntime ? 'gnu' : 'musl'}`;
  }
  return os === 'win32' ? `${os}-${arch}-msvc` : `${os}-${arch}`;
}

/** The kill switch: with TAILROPE_DISABLE=1 in the environment everything is stock. */
export function isDisabled() {
  return !['', '0', undefined].includes(process.env.TAILROPE_DISABLE);
}
