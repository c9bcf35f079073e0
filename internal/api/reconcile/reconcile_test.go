package reconcile

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// loop notes whose pause was ended.
type loop struct {
	Loop
	resumed []string
}

func (l *loop) Resume(_ context.Context, host, _ string) (fleet.Pauses, error) {
	l.resumed = append(l.resumed, host)
	return fleet.Pauses{}, nil
}

func (l *loop) Status() (converge.Status, error) { return converge.Status{}, nil }

type keeper struct{}

func (keeper) Do(ctx context.Context, _ idempotency.Call, run func(context.Context, *state.Idempotency) (idempotency.Answer, error)) (idempotency.Answer, error) {
	return run(ctx, nil)
}

// Without a host the whole fleet goes on being cleared, so a host that was
// named in a way which is not understood must not count as none.
func TestResumeTakesNoMoreThanWasMeant(t *testing.T) {
	l := &loop{}
	router := web.NewRouter(Routes(l, keeper{}))
	for _, c := range []struct {
		query, body string
		resumes     []string // nil: refused
	}{
		{"", "", []string{""}},
		{"", "{}", []string{""}},
		{"?host=h1", "", []string{"h1"}},
		{"?hosts=h1", "", nil},
		{"?Host=h1", "", nil},
		{"?host=", "", nil},
		{"?host", "", nil},
		{"?host=h1&host=h2", "", nil},
		{"", `{"host":"h1"}`, nil},
		{"?host=h1", `{"host":"h2"}`, nil},
	} {
		l.resumed = nil
		hr := httptest.NewRequest(http.MethodDelete, "/v1/reconcile/pause"+c.query, nil)
		path, _ := router.Match(&url.URL{Path: "/v1/reconcile/pause"})
		r := &web.Request{Request: hr, Route: path.Methods[http.MethodDelete], Payload: []byte(c.body), Log: slog.New(slog.DiscardHandler)}
		err := r.Route.Handle(&web.Writer{ResponseWriter: httptest.NewRecorder()}, r)
		if refused := fleet.CodeOf(err) == fleet.CodeInvalidArgument; refused != (c.resumes == nil) || err != nil && !refused {
			t.Errorf("%s %s: %v", c.query, c.body, err)
		}
		if len(l.resumed) != len(c.resumes) || len(c.resumes) == 1 && l.resumed[0] != c.resumes[0] {
			t.Errorf("%s %s: resumed %q, want %q", c.query, c.body, l.resumed, c.resumes)
		}
	}
}
