package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/fusevm/fuse/internal/fleet"
)

// Config says who makes the traces.
type Config struct {
	Service string // fuse-server or fuse-hostd, unless OTEL_SERVICE_NAME says otherwise
	Version string
	Logger  *slog.Logger
}

// New makes a Tracer as the OTEL_* variables say; without a collector in them
// it is nil, which is a Tracer that makes nothing. Endpoint, headers, timeout,
// certificates, sampler and queue are read by OpenTelemetry itself.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	on, err := wanted(os.Getenv)
	if !on || err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	attrs := []attribute.KeyValue{
		attribute.String("service.name", cmp.Or(os.Getenv("OTEL_SERVICE_NAME"), cfg.Service)),
		attribute.String("service.version", cfg.Version),
	}
	res, err := resource.New(ctx, resource.WithAttributes(attrs...), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		cfg.Logger.Warn("part of the resource of traces is missing", slog.Any("error", err))
	}
	quiet(cfg.Logger)
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	return &Tracer{provider: provider, stop: provider.Shutdown}, nil
}

// wanted reads whether there is a collector, and refuses what is not built.
func wanted(env func(string) string) (bool, error) {
	endpoint := cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), env("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := env("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return false, nil
	default:
		return false, refused("OTEL_TRACES_EXPORTER", exporter, "otlp or none")
	}
	switch protocol := cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), env("OTEL_EXPORTER_OTLP_PROTOCOL")); protocol {
	case "", "http/protobuf":
		return true, nil
	default:
		return false, refused("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "http/protobuf")
	}
}

func refused(name, value, limit string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%s is %.40q", name, value).
		With(fleet.DetailLimit, limit).With(fleet.DetailRemedy, "set it to "+limit+", or unset it")
}

// complainEvery bounds how often a collector that is away is mentioned.
const complainEvery = time.Minute

// quiet has OpenTelemetry's own errors logged, the first of each minute. They
// are errors of this process, not of one tracer: the library knows one place
// for them.
func quiet(log *slog.Logger) {
	var last atomic.Int64
	began := time.Now()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		now := int64(time.Since(began)) + int64(complainEvery)
		if before := last.Load(); now-before >= int64(complainEvery) && last.CompareAndSwap(before, now) {
			log.Warn("traces not delivered", slog.Any("error", err))
		}
	}))
}
