// Asks a broker, through one connection of sarama's, for what isn't there yet: sarama gives a
// connection up on which a request gets no answer. Prints what became of each call, in turn. With a
// version, a topic and a codec behind the address it is an old client: see old.go; with a topic and a
// group it is members of that: see group.go.
package main

import (
	"encoding/json"
	"os"

	"github.com/IBM/sarama"
)

func main() {
	if len(os.Args) == 4 {
		beGroup(os.Args[1], os.Args[2], os.Args[3])
		return
	}
	if len(os.Args) > 2 {
		beOld(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
		return
	}
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	client, err := sarama.NewClient([]string{os.Args[1]}, config)
	if err != nil {
		panic(err)
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		panic(err)
	}
	said := map[string]string{}
	note := func(name string, found int, err error) {
		if err != nil {
			said[name] = err.Error()
		} else {
			said[name] = map[bool]string{true: "nothing", false: "something"}[found == 0]
		}
	}
	filter := sarama.AclFilter{
		Version:                   1,
		ResourceType:              sarama.AclResourceAny,
		ResourcePatternTypeFilter: sarama.AclPatternAny,
		Operation:                 sarama.AclOperationAny,
		PermissionType:            sarama.AclPermissionAny,
	}
	broker, err := client.Controller()
	if err != nil {
		panic(err)
	}
	acls, err := broker.DescribeAcls(&sarama.DescribeAclsRequest{Version: 1, AclFilter: filter})
	if err == nil && acls.Err != sarama.ErrNoError {
		err = acls.Err
	}
	note("DescribeAcls", 0, err)
	created := admin.CreateACL(
		sarama.Resource{ResourceType: sarama.AclResourceTopic, ResourceName: "t", ResourcePatternType: sarama.AclPatternLiteral},
		sarama.Acl{Principal: "User:a", Host: "*", Operation: sarama.AclOperationRead, PermissionType: sarama.AclPermissionAllow},
	)
	note("CreateAcls", 0, created)
	deleted, err := admin.DeleteACL(filter, false)
	note("DeleteAcls", len(deleted), err)
	quotas, err := admin.DescribeClientQuotas(nil, false)
	note("DescribeClientQuotas", len(quotas), err)
	users, err := admin.DescribeUserScramCredentials([]string{"alice"})
	if err == nil {
		err = users[0].ErrorCode
	}
	note("DescribeUserScramCredentials", len(users), err)
	connected, err := broker.Connected()
	note("Connected", map[bool]int{true: 1, false: 0}[connected], err)
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		panic(err)
	}
}
