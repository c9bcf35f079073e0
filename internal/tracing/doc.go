// Package tracing makes OpenTelemetry traces of what requests and cycles do,
// across server and host agents. It is off unless the standard OTEL_*
// variables name a collector, and then costs what its spans cost: they wait in
// a bounded queue, are dropped when it is full, and nothing ever waits for a
// collector. Attributes are ids, states and names from a fixed list; commands,
// files, environment values and error texts never become one.
package tracing
