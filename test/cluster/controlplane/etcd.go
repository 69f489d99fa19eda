// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Compact makes etcd forget all revisions but the last: what is older cannot be watched from any more.
func (c *ControlPlane) Compact(ctx context.Context) error {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{fmt.Sprintf("http://127.0.0.1:%d", etcdPort)}, DialTimeout: 10 * time.Second, Context: ctx,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return c.Dial(ctx, "tcp", address)
		})},
	})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	defer client.Close()
	now, err := client.Get(ctx, "revision")
	if err != nil {
		return fmt.Errorf("ask etcd for its revision: %w", err)
	}
	if _, err := client.Compact(ctx, now.Header.Revision); err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}
