package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/tracing/tracetest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func start(t *testing.T, endpoint string) *Tracer {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	tracer, err := New(t.Context(), Config{Service: "fuse-test", Version: "v1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil || tracer == nil {
		t.Fatalf("got %v, %v", tracer, err)
	}
	return tracer
}

func TestOffByDefault(t *testing.T) {
	tracer, err := New(t.Context(), Config{})
	if tracer != nil || err != nil {
		t.Fatalf("got %v, %v", tracer, err)
	}
	ctx := t.Context()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("traceparent", "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01")
	allocs := testing.AllocsPerRun(100, func() {
		begun, span := tracer.Begin(ctx, "cycle")
		inner, part := Start(begun, "step")
		part.Set(VMID, "vm")
		part.End(nil)
		Carry(inner, ctx)
		Current(ctx).SetInt(Count, 1)
		span.Name("x")
		span.End(nil)
		served, whole := tracer.Serve(r, "x")
		called, call := Call(served, "y")
		if called != r {
			t.Error("a request was changed")
		}
		call.End(nil)
		whole.End(nil)
	})
	if allocs != 0 {
		t.Errorf("%v allocations without a collector", allocs)
	}
	next := http.NewServeMux()
	if h := tracer.Handler(next, nil); h != http.Handler(next) {
		t.Error("a handler was wrapped")
	}
	if err := tracer.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestSettings(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, tt := range map[string]struct {
		env  map[string]string
		on   bool
		want string // of the error
	}{
		"none":             {},
		"endpoint":         {env: map[string]string{endpoint: "http://c:4318"}, on: true},
		"traces' endpoint": {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, on: true},
		"disabled":         {env: map[string]string{endpoint: "http://c", "OTEL_SDK_DISABLED": "TRUE"}},
		"no exporter":      {env: map[string]string{endpoint: "http://c", "OTEL_TRACES_EXPORTER": "none"}},
		"this protocol":    {env: map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, on: true},
		"other protocol":   {env: map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, want: `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc"`},
		"other exporter":   {env: map[string]string{endpoint: "http://c", "OTEL_TRACES_EXPORTER": "zipkin"}, want: `OTEL_TRACES_EXPORTER is "zipkin"`},
	} {
		t.Run(name, func(t *testing.T) {
			on, err := wanted(func(k string) string { return tt.env[k] })
			switch {
			case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %q", err, tt.want)
			case on != tt.on:
				t.Errorf("on is %v", on)
			}
		})
	}
}

// One trace goes through two processes and a piece of work that outlives its
// caller.
func TestTraceAcrossProcesses(t *testing.T) {
	c := tracetest.Start(t)
	tracer := start(t, c.URL)
	agent := httptest.NewServer(tracer.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		Current(r.Context()).Set(VMID, "fuse-t")
	}), func(*http.Request) string { return "agent" }))
	defer agent.Close()

	ctx, root := tracer.Begin(t.Context(), "request")
	root.SetInt(Status, 201)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	later, work := Start(Carry(ended, t.Context()), "work")
	if later.Err() != nil {
		t.Error("the caller's end reached the work")
	}
	req, err := http.NewRequestWithContext(later, http.MethodPost, agent.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req, call := Call(req, "call")
	resp, err := agent.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	err = resp.Body.Close()
	call.End(err)
	work.Set(Step, strings.Repeat("x", 10*maxValue))
	work.End(fleet.Errorf(fleet.CodeUnavailable, "the secret is hunter2"))
	root.End(nil)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := map[string]tracetest.Span{}
	for _, s := range c.Spans() {
		spans[s.Name] = s
	}
	for child, parent := range map[string]string{"work": "request", "call": "work", "agent": "call"} {
		if s := spans[child]; s.Parent != spans[parent].ID || s.Trace != spans["request"].Trace || s.Service != "fuse-test" {
			t.Errorf("%s is not under %s: %+v", child, parent, s)
		}
	}
	if spans["request"].Parent != "" || spans["request"].Attributes[string(Status)] != "201" || spans["agent"].Attributes[string(VMID)] != "fuse-t" {
		t.Errorf("got %+v", spans)
	}
	if w := spans["work"]; w.Failed != "unavailable" || len(w.Attributes[string(Step)]) != maxValue {
		t.Errorf("got %+v", w)
	}
}

// A collector that is away, or hangs, holds up nobody: spans are dropped.
func TestCollectorAwayBlocksNobody(t *testing.T) {
	hung := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(hung)
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "200")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
	tracer := start(t, srv.URL)
	began := time.Now()
	const many = 20_000
	for range many {
		_, span := tracer.Begin(t.Context(), "x")
		span.End(nil)
	}
	if took := time.Since(began); took > time.Minute { // waiting for each batch would take four
		t.Errorf("%d spans took %s", many, took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began = time.Now()
	if err := tracer.Close(ctx); err == nil {
		t.Error("what could not be sent counts as sent")
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the end took %s", took)
	}
}

// A value that is cut within a letter, or is no text at all, is sent all the
// same, and with it the spans beside it.
func TestValuesAreText(t *testing.T) {
	c := tracetest.Start(t)
	tracer := start(t, c.URL)
	ctx, span := tracer.Begin(t.Context(), "request")
	_, beside := Start(ctx, "beside")
	beside.End(nil)
	span.Set(TaskID, "x"+strings.Repeat("\u00e9", maxValue))
	span.Set(Step, "a\xffb")
	span.End(nil)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := c.Spans()
	if len(got) != 2 {
		t.Fatalf("%d spans came", len(got))
	}
	for _, s := range got {
		if s.Name == "request" && (s.Attributes[string(TaskID)] != "x"+strings.Repeat("\u00e9", maxValue/2-1) || s.Attributes[string(Step)] != "ab") {
			t.Errorf("%+v", s.Attributes)
		}
	}
}
