package tracing

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusevm/fuse/internal/fleet"
)

// scope names who makes the spans.
const scope = "github.com/fusevm/fuse"

// Key is the name of an attribute. There are no others: what is not listed
// here cannot leak.
type Key string

// Attributes.
const (
	VMID    Key = "vm_id"
	UID     Key = "uid"
	HostID  Key = "host_id"
	TaskID  Key = "task_id"
	Step    Key = "step"
	Rule    Key = "rule"
	Result  Key = "result"
	Method  Key = "http.request.method"
	Route   Key = "http.route"
	Status  Key = "http.response.status_code"
	Request Key = "request_id"
	Count   Key = "count"
)

// maxValue bounds an attribute's value, in bytes.
const maxValue = 256

// Span is one piece of work, or nothing at all where no trace is made. The zero
// Span is nothing.
type Span struct{ span trace.Span }

// Start begins a part of the trace that ctx belongs to. Without one it costs
// nothing and the Span is nothing.
func Start(ctx context.Context, name string) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.SpanContext().IsValid() {
		return ctx, Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
	return ctx, Span{span}
}

// Carry lets what runs under to belong to the trace of from. The end of from
// does not reach it.
func Carry(from, to context.Context) context.Context {
	span := trace.SpanFromContext(from)
	if !span.SpanContext().IsValid() {
		return to
	}
	return trace.ContextWithSpan(to, span)
}

// In lets what runs under ctx belong to the span, also after its end.
func (s Span) In(ctx context.Context) context.Context {
	if s.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, s.span)
}

// Current is the span that ctx is in.
func Current(ctx context.Context) Span {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return Span{span}
	}
	return Span{}
}

// Steps adds parts that are over already: one after the other, the last of
// which ended now.
func (s Span) Steps(ctx context.Context, prefix string, steps []fleet.StepTime) {
	if s.span == nil {
		return
	}
	ended := time.Now()
	for _, st := range slices.Backward(steps) {
		began := ended.Add(-st.Took)
		_, part := s.span.TracerProvider().Tracer(scope).Start(s.In(ctx), prefix+st.Step, trace.WithTimestamp(began))
		part.End(trace.WithTimestamp(ended))
		ended = began
	}
}

// Set adds an attribute; empty values are left out.
func (s Span) Set(key Key, value string) {
	if s.span == nil || value == "" {
		return
	}
	// A single value that is not UTF-8 would cost its whole batch.
	s.span.SetAttributes(attribute.String(string(key), strings.ToValidUTF8(value[:min(len(value), maxValue)], "")))
}

// SetInt adds a number.
func (s Span) SetInt(key Key, value int) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int(string(key), value))
	}
}

// Name replaces the name, where it is not known at the beginning.
func (s Span) Name(name string) {
	if s.span != nil {
		s.span.SetName(name)
	}
}

// End ends the span. Of an error it keeps the code, never the text: that may
// hold what a caller sent.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, string(fleet.CodeOf(err)))
	}
	s.span.End()
}
