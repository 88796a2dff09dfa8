// Which package has the native half.

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
