package tracing

import (
	"context"
	"log/slog"
	"testing"

	"github.com/fusevm/fuse/internal/tracing/tracetest"
)

// BenchmarkSpan is one part of a trace with three attributes, on and off.
func BenchmarkSpan(b *testing.B) {
	part := func(ctx context.Context) {
		_, span := Start(ctx, "create place")
		span.Set(VMID, "fuse-task-1")
		span.Set(HostID, "h1")
		span.Set(TaskID, "task-1")
		span.End(nil)
	}
	b.Run("off", func(b *testing.B) {
		for b.Loop() {
			part(b.Context())
		}
	})
	b.Run("on", func(b *testing.B) {
		b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", tracetest.Start(b).URL)
		tracer, err := New(b.Context(), Config{Service: "bench", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		ctx, root := tracer.Begin(b.Context(), "request")
		for b.Loop() {
			part(ctx)
		}
		root.End(nil)
		if err := tracer.Close(b.Context()); err != nil {
			b.Error(err)
		}
	})
}
