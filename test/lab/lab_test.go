package lab

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/cluster"
	"github.com/fusevm/fuse/test/history"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// leasePeriod is that of the servers here: a busy machine may keep a process
// waiting for a second.
const leasePeriod = 2 * time.Second

// lab is two servers on one database and a few hosts, with links in between.
type lab struct {
	t     *testing.T
	opts  []cluster.ServerOptions
	toDB  []*cluster.Link // of each server
	hosts []*cluster.Host
	links []*cluster.Link // to each host
	log   *history.Log

	mu      sync.Mutex
	servers []*cluster.Server
}

func newLab(t *testing.T, hosts int, sim string) *lab {
	l := &lab{t: t, log: history.New(&history.Clock{})}
	base := pgtest.Shared(t).Database(t)
	for n := range hosts {
		h := cluster.StartHost(t, fmt.Sprint("h", n+1), sim)
		l.hosts = append(l.hosts, h)
		l.links = append(l.links, cluster.NewLink(t, strings.TrimPrefix(h.URL, "http://")))
	}
	for range 2 {
		link, through := linkTo(t, base)
		l.toDB = append(l.toDB, link)
		o := cluster.ServerOptions{DatabaseURL: through, DataDir: t.TempDir(), Addr: testkit.Addr(t), Lease: leasePeriod}
		l.opts = append(l.opts, o)
		l.servers = append(l.servers, cluster.StartServer(t, o))
	}
	leads := l.leader()
	l.server(1 - leads).WaitStandby()
	for n, h := range l.hosts {
		l.server(leads).Register(h.ID, "http://"+l.links[n].Addr())
	}
	return l
}

// linkTo makes a link to a database and its URL through the link.
func linkTo(t *testing.T, databaseURL string) (*cluster.Link, string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := net.SplitHostPort(u.Host); err != nil {
		t.Fatal(err)
	}
	link := cluster.NewLink(t, u.Host)
	u.Host = link.Addr()
	return link, u.String()
}

func (l *lab) server(n int) *cluster.Server {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.servers[n]
}

// again starts a server anew that has ended.
func (l *lab) again(n int) {
	s := cluster.StartServer(l.t, l.opts[n])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.servers[n] = s
}

// leader waits until a server leads and is ready, and returns which.
func (l *lab) leader() (leads int) {
	l.t.Helper()
	testkit.Eventually(l.t, 2*time.Minute, "a server leads", func() bool {
		for n := range l.opts {
			if l.server(n).Ready() {
				leads = n
				return true
			}
		}
		return false
	})
	return leads
}

// environment is the part of an answer that is looked at.
type environment struct {
	ID    string `json:"id"`
	UID   string `json:"uid"`
	State string `json:"state"`
}

// call makes one request through some server and writes down what came of it.
func (l *lab) call(client int, rnd *rand.Rand, verb history.Verb, task, method, path, body string) {
	op := l.log.Begin(client, verb, "fuse-"+task)
	a, err := l.server(rnd.IntN(len(l.opts))).Do(method, path, body)
	l.end(op, a, err)
	if err != nil || a.Status >= http.StatusInternalServerError {
		<-time.After(time.Duration(50+rnd.IntN(300)) * time.Millisecond) // as clients do
	}
}

// untouched are the words with which a server says that it did nothing.
var untouched = regexp.MustCompile(`nothing was done|no server leads the fleet|the server is (starting|stopping)|changing its leader|taking the fleet over|which nobody can take before`)

func (l *lab) end(op *history.Op, a cluster.Answer, err error) {
	var env environment
	out, note := history.Lost, ""
	switch {
	case err != nil:
		note = err.Error()
	case a.Status == http.StatusNotFound:
		out = history.NotFound
	case a.Status == http.StatusAccepted:
		out = history.Pending
	case a.Status/100 == 2:
		out = history.Done
		_ = json.Unmarshal([]byte(a.Body), &env) // a 204 has no body
	case a.Status/100 == 4:
		out, note = history.Refused, a.Body
	case a.Status == http.StatusServiceUnavailable && untouched.MatchString(a.Body):
		l.log.Drop(op) // if that is not true, nothing explains what others see
		return
	default:
		out, note = history.Failed, a.Body
	}
	l.log.End(op, out, env.UID, env.State, strings.TrimSpace(note))
}

// tasks is how many task ids the clients share.
const tasks = 24

// client makes calls until stop is closed.
func (l *lab) client(n int, rnd *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rnd.ExpFloat64() * float64(15*time.Millisecond))):
		}
		task := fmt.Sprint("t", rnd.IntN(tasks))
		path := "/v1/environments/fuse-" + task
		switch k := rnd.IntN(100); {
		case k < 40:
			l.call(n, rnd, history.Create, task, http.MethodPost, "/v1/environments", fmt.Sprintf(`{"task_id":%q,"spec":{"cpus":1,"ram_mb":64,"storage_gb":1}}`, task))
		case k < 60:
			l.call(n, rnd, history.Destroy, task, http.MethodDelete, path, "")
		case k < 66:
			l.call(n, rnd, history.Drain, task, http.MethodPost, path+"?action=drain", "")
		case k < 90:
			l.call(n, rnd, history.Look, task, http.MethodGet, path, "")
		default:
			l.list(n, rnd)
		}
	}
}

// list looks at all environments at once, which is a look at each.
func (l *lab) list(client int, rnd *rand.Rand) {
	ops := map[string]*history.Op{}
	for n := range tasks {
		id := fmt.Sprint("fuse-t", n)
		ops[id] = l.log.Begin(client, history.Look, id)
	}
	a, err := l.server(rnd.IntN(len(l.opts))).Do(http.MethodGet, "/v1/environments?limit=200", "")
	found, ok := map[string]environment{}, err == nil && a.Status == http.StatusOK
	if ok {
		var page struct {
			Environments []environment `json:"environments"`
		}
		if err := json.Unmarshal([]byte(a.Body), &page); err != nil {
			l.t.Errorf("list: %v: %s", err, a.Body)
		}
		for _, env := range page.Environments {
			found[env.ID] = env
		}
	}
	for id, op := range ops {
		switch env, there := found[id]; {
		case !ok:
			l.end(op, a, err)
		case there:
			l.log.End(op, history.Done, env.UID, env.State, "")
		default:
			l.log.End(op, history.NotFound, "", "", "not in the list")
		}
	}
}
