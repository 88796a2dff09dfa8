// Loads the native half: built in this folder, or from the package of this platform.
//
// CommonJS with literal names, each in a `try` of its own: so bundlers find the file, or leave the name as it is, and
// take no offence at packages of other platforms.
'use strict';

const failed = [];

function missing(name, error) {
  failed.push({ name, error });
}

function load() {
  try {
    return require('../tailrope.node');
  } catch (error) {
    missing('../tailrope.node', error);
  }
  switch (`${process.platform}-${process.arch}`) {
    case 'darwin-arm64':
      try {
        return require('tailrope-darwin-arm64');
      } catch (error) {
        missing('tailrope-darwin-arm64', error);
      }
      break;
    case 'darwin-x64':
      try {
        return require('tailrope-darwin-x64');
      } catch (error) {
        missing('tailrope-darwin-x64', error);
      }
      break;
    case 'linux-arm64':
      try {
        return require('tailrope-linux-arm64-gnu');
      } catch (error) {
        missing('tailrope-linux-arm64-gnu', error);
      }
      try {
        return require('tailrope-linux-arm64-musl');
      } catch (error) {
        missing('tailrope-linux-arm64-musl', error);
      }
      break;
    case 'linux-x64':
      try {
        return require('tailrope-linux-x64-gnu');
      } catch (error) {
        missing('tailrope-linux-x64-gnu', error);
      }
      try {
        return require('tailrope-linux-x64-musl');
      } catch (error) {
        missing('tailrope-linux-x64-musl', error);
      }
      break;
    case 'win32-x64':
      try {
        return require('tailrope-win32-x64-msvc');
      } catch (error) {
        missing('tailrope-win32-x64-msvc', error);
      }
      break;
  }
  throw Object.assign(new Error(message(), { cause: failed.at(-1).error }), { code: 'native_missing' });
}

function message() {
  const tried = failed.map(({ name, error }) => `${name} (${String(error.message).split('\n')[0]})`);
  return `The native half of tailrope is not loaded: ${reason()}. It was looked for as ${tried.join(', ')}`;
}

/** What happened, and what to do. */
function reason() {
  const of = (code) => failed.find(({ error }) => error.code === code);
  if (of('ERR_DLOPEN_DISABLED')) {
    return 'this process may not load native addons. Start Node with --allow-addons, or without --no-addons';
  }
  if (of('ERR_ACCESS_DENIED')) {
    return 'this process may not read its files. Start Node with --allow-fs-read for the folder of its packages';
  }
  if (failed.some(({ error }) => /Dynamic require of|require is not defined/.test(error.message))) {
    return (
      'a bundler made an ES module of this program, which has no `require`. Mark `tailrope` as external and install it ' +
      'beside the bundle, or give the bundle a `require`: with esbuild by a banner that calls createRequire'
    );
  }
  const unfit = of('ERR_DLOPEN_FAILED');
  if (unfit) {
    return `${unfit.name} is there and does not fit this system. Install the package again on this system, not by a copy`;
  }
  if (failed.length === 1) {
    return `there is no package for ${process.platform} on ${process.arch}. Build it: \`npm run build\` in its folder`;
  }
  return (
    'no package with it is installed, or a bundler left it behind. Install tailrope with its optional dependencies; in a ' +
    'bundle, mark `tailrope` as external and install it beside the bundle'
  );
}

module.exports = load();
