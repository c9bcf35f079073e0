package serving

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A server that does not lead any more exports nothing of the plane that it had.
func TestAPlaneThatIsGoneIsForgotten(t *testing.T) {
	m := metrics.New("test")
	scraped := func() string {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	r := &Process{metrics: m}
	r.forget()
	before := scraped()
	m.WatchFleet(func() metrics.Fleet { return metrics.Fleet{} })
	m.WatchLease(func() metrics.Lease { return metrics.Lease{Leader: true, Term: 4711} })
	m.WatchPool(func() metrics.Pool { return metrics.Pool{Max: 4712} })
	m.WatchWebhooks(func() metrics.Webhooks { return metrics.Webhooks{Pending: 4713} })
	leading := scraped()
	r.forget()
	after := scraped()
	for _, part := range []string{
		"orchestrator_lease_term 4711\n", `orchestrator_store_pool_connections{state="max"} 4712` + "\n", "orchestrator_webhook_pending_deliveries 4713\n",
	} {
		if strings.Contains(before, part) || !strings.Contains(leading, part) || strings.Contains(after, part) {
			t.Errorf("%q: before %v, leading %v, after %v", part, strings.Contains(before, part), strings.Contains(leading, part), strings.Contains(after, part))
		}
	}
}
