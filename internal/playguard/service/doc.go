// Package service is what people do with Playguard: it registers marquees,
// takes the directory of a Compose environment and makes a playground of it,
// and writes what is asked of one into its record. It starts nothing on a host
// by itself, looks, logs and commands aside: the loop does, and its kick makes
// that prompt.
//
// Who calls is the principal of the context (package auth): it owns what it
// makes, sees its own playgrounds only, unless its role sees all, and is the
// actor of the events that follow. What it may not see is not found. Marquees
// are for operators; everybody sees their names, and an owner of playgrounds
// what concerns them. An id may be given in full or as a name, which is unique:
// that of a marquee in the fleet, that of a playground with its owner.
//
// A call that asks for work answers once the wish is durable. What became of
// it shows in the record (State, Step, Failure), in events, and in Explain; the
// state is pending, in_progress, stopping or destroying until then. Waiting is
// for the caller: Wait returns at the next state that lasts.
//
// Errors are fleet errors. Details worth showing are reason, remedy, limit and
// scope; for a host key that is to be confirmed also host_key and fingerprint.
package service
