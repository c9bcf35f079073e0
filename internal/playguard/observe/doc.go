// Package observe turns the answer of one round trip to a marquee into a Look:
// seen, partly seen or unseen. It parses the frame that the runner on the host
// writes (docs/design/playguard.md), names what went wrong, and compares the
// host's identity with the pinned one. It does no I/O.
//
// Lists are reachable only through methods that also say whether they were
// seen. There is no way to ask whether something exists.
package observe
