// Package lifecycle makes environments and ends them. Every piece of long work
// has one form: claim (a durable transition with a new generation), act (calls
// to the host under a lock keyed by VM), settle (another durable transition if
// the claim still holds, else undo). Work belongs to the service: the caller
// may leave, and a destroy wins over a create in flight.
package lifecycle
