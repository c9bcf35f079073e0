package tracing

import (
	"context"
	"io"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Tracer begins traces. A nil Tracer begins none.
type Tracer struct {
	provider trace.TracerProvider
	stop     func(context.Context) error
}

var wire propagation.TraceContext

// Begin begins a trace, of work that nobody asked for.
func (t *Tracer) Begin(ctx context.Context, name string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.provider.Tracer(scope).Start(ctx, name, trace.WithNewRoot())
	return ctx, Span{span}
}

// Serve begins the part of a request that this process answers, in the trace
// that its traceparent header names, if it has one.
func (t *Tracer) Serve(r *http.Request, name string) (*http.Request, Span) {
	if t == nil {
		return r, Span{}
	}
	ctx := wire.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := t.provider.Tracer(scope).Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	return r.WithContext(ctx), Span{span}
}

// Handler is next with a span for every request that is part of a trace. name
// answers "" for requests that get none.
func (t *Tracer) Handler(next http.Handler, name func(*http.Request) string) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := name(r)
		if text == "" || r.Header.Get("traceparent") == "" {
			next.ServeHTTP(w, r)
			return
		}
		r, span := t.Serve(r, text)
		defer span.End(nil)
		next.ServeHTTP(w, r)
	})
}

// Call begins a call to another process: it is part of the trace of the
// request's ctx, and its headers say so. The request is changed.
func Call(r *http.Request, name string) (*http.Request, Span) {
	parent := trace.SpanFromContext(r.Context())
	if !parent.SpanContext().IsValid() {
		return r, Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(r.Context(), name, trace.WithSpanKind(trace.SpanKindClient))
	wire.Inject(ctx, propagation.HeaderCarrier(r.Header))
	return r.WithContext(ctx), Span{span}
}

// UntilClosed ends the span when the body of an answer is closed.
func UntilClosed(body io.ReadCloser, span Span) io.ReadCloser {
	if span.span == nil {
		return body
	}
	return &spanBody{body, span}
}

type spanBody struct {
	io.ReadCloser
	span Span
}

func (b *spanBody) Close() error {
	err := b.ReadCloser.Close()
	b.span.End(err) // again does nothing
	return err
}

// Close sends what still waits, for as long as ctx lasts.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.stop(ctx)
}
