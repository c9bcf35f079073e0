package secrets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"
)

// What is put together here and what crypto/x509 makes of the same template
// differ in nothing but key, signature and the second they were made in.
func TestCertificatesAreThoseOfTheLibrary(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fuse-a", "A_b.c-1", strings.Repeat("x", maxCN), "ümlaut", "with * and @"} {
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
		if err != nil {
			t.Fatal(err)
		}
		tmpl := template(serial, name)
		want, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := selfSign(key, serial, name)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := parse(t, got), parse(t, want)
		if err := ours.CheckSignature(ours.SignatureAlgorithm, ours.RawTBSCertificate, ours.Signature); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, at := range [][2]time.Time{{ours.NotBefore, theirs.NotBefore}, {ours.NotAfter, theirs.NotAfter}} {
			if d := at[0].Sub(at[1]); d < 0 || d > time.Minute {
				t.Errorf("%s: valid %v later", name, d)
			}
		}
		for _, c := range []*x509.Certificate{ours, theirs} { // told apart above
			c.Raw, c.RawTBSCertificate, c.Signature = nil, nil, nil
			c.NotBefore, c.NotAfter = time.Time{}, time.Time{}
		}
		if !reflect.DeepEqual(ours, theirs) {
			t.Errorf("%s:\n%+v, want\n%+v", name, ours, theirs)
		}
	}
}

func parse(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func BenchmarkNewVMCredentials(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewVMCredentials("fuse-task"); err != nil {
			b.Fatal(err)
		}
	}
}
