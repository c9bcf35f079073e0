// Package standby makes several server processes on one store look like one
// server. One of them owns the fleet and answers; the others know where it is,
// pass calls on to it, and take over when its lease is free. What answers in a
// process is a Front, who decides which it is an Elector. The design note is
// docs/design/leadership.md.
package standby
