// From where an endpoint that `serve` serves takes requests: a page of another site, which a browser of this machine may show, is
// not to use a server that listens for this machine alone.
import { BlockList } from 'node:net';

import { Engine, type Refusal } from '../native.mjs';
import type { Exchange } from './exchange.mjs';
import type { AllowedSenders } from './transport-options.mjs';

const loopback = new BlockList();
loopback.addSubnet('127.0.0.0', 8, 'ipv4');
loopback.addAddress('::1', 'ipv6');
const LOCAL_NAMES = ['localhost', '127.0.0.1', '[::1]'];

const LOCAL_ORIGINS = LOCAL_NAMES.flatMap((name) => [`http://${name}`, `https://${name}`]);
/** A name alone, and with any port. */
const withPorts = (names: string[]) => names.flatMap((name) => [name, `${name}:*`]);

export class Allowed {
  #isChecked: boolean;
  #isLocal: boolean;
  #hosts: string[] | undefined;
  #origins: string[] | undefined;

  /** `address` is the one that is listened at. */
  constructor(address: string, { enableDnsRebindingProtection, allowedHosts, allowedOrigins }: AllowedSenders) {
    this.#isLocal = loopback.check(address, address.includes(':') ? 'ipv6' : 'ipv4');
    const isAsked = allowedHosts !== undefined || allowedOrigins !== undefined;
    this.#isChecked = enableDnsRebindingProtection ?? (this.#isLocal || isAsked);
    // Copies: what the front was told of them stays as it is.
    this.#hosts = allowedHosts && [...allowedHosts];
    this.#origins = allowedOrigins && [...allowedOrigins];
  }

  /** The answer to a request from elsewhere. */
  refusalOf(major: number, exchange: Exchange): Refusal | null {
    if (!this.#isChecked) {
      return null;
    }
    const { host } = exchange;
    const origin = exchange.header('origin');
    const hosts = this.#hosts ?? (this.#isLocal && !isLocal(host, LOCAL_NAMES) ? LOCAL_NAMES : []);
    const origins = this.#origins ?? (this.#isLocal && !isLocal(origin, LOCAL_ORIGINS) ? LOCAL_ORIGINS : []);
    return Engine.forbidden(major, hosts, origins, host, origin);
  }

  /** The same for the front, which passes on what it does not find here. Without a list it takes all. */
  get terms(): { allowedHosts?: string[]; allowedOrigins?: string[] } {
    if (!this.#isChecked) {
      return {};
    }
    const hosts = this.#hosts ?? (this.#isLocal ? withPorts(LOCAL_NAMES) : []);
    const origins = this.#origins ?? (this.#isLocal ? withPorts(LOCAL_ORIGINS) : []);
    return {
      ...(hosts.length > 0 && { allowedHosts: hosts }),
      ...(origins.length > 0 && { allowedOrigins: origins }),
    };
  }
}

/** Whether a value is one of these, with any port. */
function isLocal(value: string | undefined, known: string[]): boolean {
  return value !== undefined && known.includes(value.replace(/:\d+$/, ''));
}
