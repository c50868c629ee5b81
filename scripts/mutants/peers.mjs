// Planted faults between a publisher of events and its followers: what a peer claims or sends without an end, and batches that are missed.
import { tested } from './checks.mjs'

const ROUTER = 'crates/kvtide-router/src'
const DECODER = `${ROUTER}/zmtp/decoder.rs`
const LISTENER = `${ROUTER}/zmtp/listener.rs`
const CURSOR = `${ROUTER}/zmq/cursor.rs`

const publishers = name => tested('peers', `of_publishers::${name}`)
const publishing = name => tested('router', `publishing::${name}`)

export const peers = [
  {
    name: 'peer-size',
    fault: 'a size that a peer claims is not looked at before its bytes have come',
    file: DECODER,
    from: 'if size > most as u64 {',
    to: 'if size > most as u64 && flags & LONG == 0 {',
    check: publishers('a_claimed_size_costs_nothing'),
  },
  {
    name: 'peer-parts',
    fault: 'a message of any number of parts is taken',
    file: DECODER,
    from: 'if !is_command && self.parts.len() == self.limits.parts {',
    to: 'if is_command && self.parts.len() == self.limits.parts {',
    check: publishers('messages_without_end_are_cut_off'),
  },
  {
    name: 'peer-count',
    fault: 'any number of peers is served',
    file: LISTENER,
    from: ' && peers.len() < PEERS_MAX {',
    to: ' && peers.len() < PEERS_MAX * 1000 {',
    check: publishers('so_many_peers_are_taken_and_others_when_they_have_gone'),
  },
  {
    name: 'peer-handshake',
    fault: 'any number of peers may begin and not end a handshake',
    file: LISTENER,
    from: 'if aborts.len() > HANDSHAKES_MAX && ',
    to: 'if aborts.len() > HANDSHAKES_MAX * 1000 && ',
    check: publishers('half_open_connections_keep_nobody_out'),
  },
  {
    name: 'peer-mechanism',
    fault: 'a peer with another mechanism of security is served',
    file: `${ROUTER}/zmtp/greeting.rs`,
    from: 'if bytes[MECHANISM] != NULL {',
    to: 'if bytes[MECHANISM.start] == 0 {',
    check: publishers('what_is_not_zmtp_without_a_mechanism_is_closed'),
  },
  {
    name: 'history-bytes',
    fault: 'the batches that are kept for replays are bounded in number alone',
    file: `${ROUTER}/zmq/history.rs`,
    from: ' || self.bytes > self.bytes_max {',
    to: ' {',
    check: publishers('those_that_do_not_read_share_what_is_kept'),
  },
  {
    name: 'follower-anew',
    fault: 'a follower does not notice that a publisher counts from the beginning again',
    file: CURSOR,
    from: 'return if is_same { Place::Seen } else { Place::Anew };',
    to: 'return if is_same || back == 0 { Place::Seen } else { Place::Anew };',
    check: publishing('a_publisher_that_begins_anew_is_noticed'),
  },
  {
    name: 'follower-replay',
    fault: 'a replay that repeats a batch is read without an end',
    file: `${ROUTER}/zmq/follower.rs`,
    from: 'if number.is_some() && number <= before {',
    to: 'if number.is_some() && number < before {',
    check: tested('peers', 'of_followers::a_replay_that_claims_or_never_ends_is_left'),
  },
  {
    name: 'publisher-behind',
    fault: 'a publisher is told to begin anew by a follower that misses nothing',
    file: `${ROUTER}/zmq/replays.rs`,
    from: 'if first.max(shared.first) < oldest.min(behind) {',
    to: 'if first < oldest.min(behind) {',
    check: publishing('a_publisher_hears_of_who_came_too_late'),
  },
]
